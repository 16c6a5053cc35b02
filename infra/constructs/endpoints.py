"""VPC endpoints for functions, pollers and jobs in a VPC without another way to AWS, once for each VPC.

Interface endpoints, with private names, so that no client needs a setting: Lambda and STS for pollers on demand
(provisioned ones need none), Lambda for the refresh of topics, Secrets Manager for proofs, STS for tables of another
account, KMS for keys of rules, Glue for schemas, CloudWatch Logs for jobs: those of functions are written by Lambda
itself, and metrics are lines of a log. Their security groups must let the functions in on port 443; as they are the
functions' own, a rule that lets a group reach itself is enough. Pollers on demand of an MSK cluster carry that
cluster's groups: one more group lets these in.

DynamoDB has a gateway instead, which costs nothing and answers to the usual name, and S3 has one for jobs; they are
made where route tables are written. No endpoint reaches the tables of another region: such a network needs another way
there.
(https://docs.aws.amazon.com/lambda/latest/dg/with-msk-cluster-network.html,
https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/vpc-endpoints-dynamodb.html,
https://docs.aws.amazon.com/emr/latest/EMR-Serverless-UserGuide/vpc-access.html)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from aws_cdk import Annotations
from aws_cdk import aws_ec2 as ec2
from constructs import Construct

from infra.iam.statements import rule_rights
from mirrorless.config.cluster import secrets_of
from mirrorless.flow.naming import FORWARD, PULL, STANDBY

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from infra.deployment import Deployment, FlowDeployment, Location
    from infra.iam import Part
    from mirrorless.config.cluster import Cluster


HTTPS: Final = 443

UserKind = Literal["home", "pull", "standby", "jobs"]

_PARTS: Final[Mapping[UserKind, Part]] = {"home": FORWARD, "pull": PULL, "standby": STANDBY, "jobs": "jobs"}
"""Kinds of users, by the parts that stand for them, in the order in which they make endpoints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VpcEndpoints:
    """The endpoints of one VPC.

    Attributes:
        vpc: its id.
        subnets: where interfaces are put; those of the first cluster, since a zone takes one of them only.
        security_groups: of the interfaces: every cluster's.
        pollers: groups that pollers on demand carry, which are let in beside these.
        services: reached by interfaces, such as `sts`.
        route_tables: that get the routes of gateways; empty: the VPC has them.
        gateways: services that these lead to: DynamoDB, and S3 where jobs run.
        accounts: whose principals may use them.
        elsewhere: regions with tables that no endpoint reaches.
        made_by: the first kind of its users, whose stack makes them: `home`, with pollers and functions, `pull`,
            `standby` or `jobs`.
    """

    vpc: str
    subnets: tuple[str, ...]
    security_groups: tuple[str, ...]
    pollers: tuple[str, ...]
    services: tuple[str, ...]
    route_tables: tuple[str, ...]
    gateways: tuple[str, ...]
    accounts: tuple[str, ...]
    elsewhere: tuple[str, ...]
    made_by: UserKind = "home"


@dataclass(frozen=True, slots=True)
class _User:
    """The functions of a flow in one VPC, for a flow at home its pollers, or its jobs."""

    flow: FlowDeployment
    kind: UserKind
    part: Part
    end: Cluster


def vpc_endpoints(
    flows: Iterable[FlowDeployment],
    pulling: Iterable[FlowDeployment] = (),
    standing_by: Iterable[FlowDeployment] = (),
    with_jobs: Iterable[FlowDeployment] = (),
) -> list[VpcEndpoints]:
    """The endpoints that are needed in one place, by VPC.

    Args:
        flows: those at home there.
        pulling: those whose scheduled topics are read there.
        standing_by: those that have a standby there.
        with_jobs: those whose jobs run there.
    """
    those = zip(_PARTS.items(), (flows, pulling, standing_by, with_jobs), strict=True)
    users = [_User(flow, kind, part, flow.end_of(part)) for (kind, part), found in those for flow in found]
    of: dict[str, list[_User]] = {}
    for user in sorted(users, key=lambda each: (each.end.alias, each.flow.id)):
        if (network := user.end.vpc) and network.endpoints and network.id:
            of.setdefault(network.id, []).append(user)
    return [_of_vpc(vpc, those) for vpc, those in sorted(of.items())]


def _of_vpc(vpc: str, users: list[_User]) -> VpcEndpoints:
    networks = [network for user in users if (network := user.end.vpc)]
    groups = _each(group for network in networks for group in network.security_groups)
    places = [user.flow.place_of(user.part) for user in users]
    states = [user.flow.state for user in users]
    polling = (user.flow.flow for user in users if user.kind == "home" and user.flow.flow.polled_on_demand)
    carried = _each(group for flow in polling for group in flow.home.msk_groups)
    return VpcEndpoints(
        vpc=vpc,
        subnets=networks[0].subnets,
        security_groups=groups,
        pollers=tuple(group for group in carried if group not in groups),
        services=tuple(sorted({service for user in users for service in _services(user)})),
        route_tables=_each(table for network in networks for table in network.route_tables),
        gateways=("dynamodb", *(["s3"] if any(user.kind == "jobs" for user in users) else [])),
        accounts=tuple(sorted({place.account for place in (*places, *states)})),
        elsewhere=tuple(sorted({place.region for place in states} - {place.region for place in places})),
        made_by=min((user.kind for user in users), key=list(_PARTS).index),
    )


def endpoints_at(deployment: Deployment, place: Location) -> list[VpcEndpoints]:
    """The endpoints of a place."""
    parts = [part for part in _PARTS.values() if part != "jobs" or deployment.settings.spark.enabled]
    return vpc_endpoints(*(deployment.flows_at(part, place) for part in parts))


def add_endpoints(
    scope: Construct, deployment: Deployment, place: Location, *, made_by: UserKind = "home"
) -> list[Endpoints]:
    """Make the endpoints of a place in the VPCs whose first users are of a kind."""
    found = endpoints_at(deployment, place)
    return [Endpoints(scope, each, region=place.region) for each in found if each.made_by == made_by]


def _services(user: _User) -> Iterator[str]:
    flow, settings = user.flow, user.flow.flow.settings
    on_demand = user.kind == "home" and settings.mapping.mode == "on-demand"
    if on_demand or (user.kind == "home" and settings.refresh_topics_enabled):
        yield "lambda"
    if on_demand or flow.tables_role_of(user.part):
        yield "sts"
    if any(secrets_of(end.authentication) for end in (flow.flow.source, flow.flow.target)):
        yield "secretsmanager"
    for right in rule_rights(user.part, flow):  # keys of a flow's rules, and schemas of its records
        yield from (action.partition(":")[0] for action in right.actions)
    if user.kind == "jobs":
        yield "logs"


def _each(found: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(found))


# What Lambda's pollers do in their own name, and only so, before they have a role.
_POLLERS = {"sts": "sts:AssumeRole", "lambda": "lambda:InvokeFunction"}


def endpoint_policy(service: str, wanted: VpcEndpoints) -> dict[str, Any]:
    """Who may use an endpoint: principals of the accounts that the flows live in, and Lambda's own pollers.

    A principal may do what its role allows: by private names, all clients in the VPC use this endpoint.
    """
    ours = {
        "Effect": "Allow",
        "Principal": {"AWS": "*"},
        "Action": f"{service}:*",
        "Resource": "*",
        "Condition": {"StringEquals": {"aws:PrincipalAccount": list(wanted.accounts)}},
    }
    if service not in _POLLERS:
        return {"Version": "2012-10-17", "Statement": [ours]}
    lambdas = {
        "Effect": "Allow",
        "Principal": {"Service": "lambda.amazonaws.com"},
        "Action": _POLLERS[service],
        "Resource": "*",
    }
    return {"Version": "2012-10-17", "Statement": [ours, lambdas]}


class Endpoints(Construct):
    """The endpoints of one VPC."""

    def __init__(self, scope: Construct, wanted: VpcEndpoints, *, region: str) -> None:
        """Args: region: the VPC's."""
        super().__init__(scope, f"Endpoints-{wanted.vpc}")
        groups = list(wanted.security_groups)
        if wanted.pollers:
            groups.append(self._group_of_pollers(wanted))
        for service in wanted.services:
            ec2.CfnVPCEndpoint(
                self,
                service,
                vpc_id=wanted.vpc,
                service_name=f"com.amazonaws.{region}.{service}",
                vpc_endpoint_type="Interface",
                private_dns_enabled=True,
                subnet_ids=list(wanted.subnets),
                security_group_ids=groups,
                policy_document=endpoint_policy(service, wanted),
            )
        for service in wanted.gateways if wanted.route_tables else ():
            ec2.CfnVPCEndpoint(
                self,
                service,
                vpc_id=wanted.vpc,
                service_name=f"com.amazonaws.{region}.{service}",
                vpc_endpoint_type="Gateway",
                route_table_ids=list(wanted.route_tables),
                # EMR Serverless fetches images and releases from buckets of AWS in its own name.
                policy_document=None if service == "s3" else endpoint_policy(service, wanted),
            )
        for elsewhere in wanted.elsewhere:
            Annotations.of(self).add_warning_v2(
                f"mirrorless:tables-{elsewhere}",
                f"tables of these flows are in {elsewhere}, where no endpoint of {wanted.vpc} leads: "
                "the network needs another way there, such as a NAT gateway",
            )

    def _group_of_pollers(self, wanted: VpcEndpoints) -> str:
        return ec2.CfnSecurityGroup(
            self,
            "FromPollers",
            vpc_id=wanted.vpc,
            group_description="Mirrorless: pollers of MSK clusters reach endpoints",
            security_group_ingress=[
                ec2.CfnSecurityGroup.IngressProperty(
                    ip_protocol="tcp",
                    from_port=HTTPS,
                    to_port=HTTPS,
                    source_security_group_id=group,
                    description="Mirrorless: pollers on demand",
                )
                for group in wanted.pollers
            ],
        ).attr_group_id
