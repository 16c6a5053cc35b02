"""Rights to reach brokers: network interfaces, and the description of an MSK cluster.

AWS acts here, not our code: Lambda makes the interfaces of a function that is in a VPC; the pollers of a mapping make
theirs, describe the MSK cluster and list its brokers. All of them act by the function's role.
(https://docs.aws.amazon.com/lambda/latest/dg/configuration-vpc.html,
https://docs.aws.amazon.com/lambda/latest/dg/with-msk-permissions.html,
https://docs.aws.amazon.com/lambda/latest/dg/with-kafka-permissions.html)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from infra.iam import Right
from mirrorless.config.cluster import Scram

if TYPE_CHECKING:
    from infra.deployment import FlowDeployment
    from infra.iam import Part
    from mirrorless.config.cluster import Vpc

WITHOUT_BROKERS: frozenset[Part] = frozenset({"remove_mappings"})
"""Parts that talk to AWS only: in a VPC they would need an endpoint."""


def network_of(part: Part, flow: FlowDeployment) -> Vpc | None:
    """The network that a function is attached to; None where it needs none, or none is written."""
    return None if part in WITHOUT_BROKERS else flow.network_of(part)


def rights(part: Part, flow: FlowDeployment) -> list[Right]:
    """What a part of a flow may do. Jobs have no rights of this kind: EMR's own role makes their interfaces."""
    if part == "jobs":
        return []
    if part != "forward":
        return _interfaces(part, flow) if network_of(part, flow) else []
    if flow.flow.mapped_by_arn:
        return [*_interfaces(part, flow, where_msk_is=True), *_description(flow)]
    return _interfaces(part, flow, polled=True) if network_of(part, flow) else []


def _interfaces(part: Part, flow: FlowDeployment, *, where_msk_is: bool = False, polled: bool = False) -> list[Right]:
    """To make, find and delete interfaces.

    Args:
        part: whose.
        flow: its flow.
        where_msk_is: for an MSK mapping's pollers too, who use the cluster's own subnets and security groups.
        polled: for a self-managed mapping's pollers too, who use the flow's.
    """
    network, here = flow.network_of(part), flow.place_of(part)
    subnets, groups = (network.subnets, network.security_groups) if network else ((), ())
    if where_msk_is:
        subnets, groups = ("*",), ("*",)
    why = " and the pollers use subnets and groups of MSK's own" if where_msk_is else ""
    places = [
        *(here.arn("ec2", f"subnet/{subnet}") for subnet in subnets),
        *(here.arn("ec2", f"security-group/{group}") for group in groups),
    ]
    looking = ["ec2:DescribeNetworkInterfaces", "ec2:DescribeSubnets"]
    if where_msk_is or polled:
        looking += ["ec2:DescribeSecurityGroups", "ec2:DescribeVpcs"]
    addresses = ("ec2:AssignPrivateIpAddresses", "ec2:UnassignPrivateIpAddresses") if network else ()
    return [
        Right(
            actions=("ec2:CreateNetworkInterface",),
            resources=(*places, here.arn("ec2", "network-interface/*")),
            reason=f"an interface has no name before it is made{why}",
        ),
        Right(
            # Only network interfaces are resources of these; Lambda refuses a role with a narrower ARN than this.
            actions=("ec2:DeleteNetworkInterface", *addresses),
            resources=(here.arn("ec2", "*/*"),),
            reason="Lambda makes the interfaces, gives them their names, and needs all of them",
        ),
        Right(actions=tuple(looking), resources=("*",), reason="EC2 describes everything or nothing"),
    ]


def _description(flow: FlowDeployment) -> list[Right]:
    """To look the cluster up. A VPC connection is of a cluster of another account, and has only its name."""
    arn = str(flow.flow.source.msk_arn)
    describe: tuple[str, ...] = ("kafka:DescribeCluster", "kafka:DescribeClusterV2")
    found = [
        Right(
            actions=("kafka:GetBootstrapBrokers",),
            resources=("*",),
            reason="MSK has no resource for bootstrap brokers",
        )
    ]
    if ":vpc-connection/" in arn:
        name = arn.split("/")[-2]
        cluster = f"arn:{flow.home.partition}:kafka:{flow.home.region}:*:cluster/{name}/*"
        why = "the connection's ARN has the cluster's name, but neither its owner nor its id"
        return [
            *found,
            Right(actions=("kafka:DescribeVpcConnection",), resources=(arn,)),
            Right(actions=describe, resources=(cluster,), reason=why),
        ]
    if isinstance(flow.flow.source.authentication, Scram):
        describe = (*describe, "kafka:ListScramSecrets")
    return [*found, Right(actions=describe, resources=(arn,))]
