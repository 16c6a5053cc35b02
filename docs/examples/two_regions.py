"""The network between two MSK clusters in two regions, for the walk-through of docs/how-to/first-deployment.md.

    .venv/bin/python -m infra.cdk deploy --app '.venv/bin/python network.py' …

In each region: private subnets for functions and jobs in the cluster's VPC, a NAT gateway for their calls to AWS, a
security group of their own, the rules of the cluster's group, and routes to the other VPC by a peering connection.
Copy the file to `network.py`, and write your own ids into `SIDES`. One account; the address ranges of the VPCs must not
overlap.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from aws_cdk import App, CfnOutput, CfnParameter, Environment, Fn, Stack, Validations
from aws_cdk import aws_ec2 as ec2
from cdk_nag import AwsSolutionsChecks

from infra.constructs.endpoints import HTTPS
from mirrorless.config.broker_ports import PortRange

if TYPE_CHECKING:
    from collections.abc import Iterable

IAM_PORTS: Final = PortRange(9098, 9098)
"""Of MSK with IAM; 9096 for SCRAM, 9094 for TLS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionNetwork:
    """One region, and what is there already.

    Attributes:
        region: its name.
        vpc: the id of the cluster's VPC.
        cidr: the VPC's addresses.
        gateway: the id of the VPC's internet gateway.
        cluster_group: the security group of the cluster, or of the VPC connection that leads to it.
        cluster_route_tables: of the cluster's subnets.
        subnets: free ranges of the VPC for functions and jobs, in two zones.
        public: a free range for the NAT gateway.
        ports: of the brokers; `CONNECTION_PORTS` of `mirrorless.config.broker_ports` behind a VPC connection.
    """

    region: str
    vpc: str
    cidr: str
    gateway: str
    cluster_group: str
    cluster_route_tables: tuple[str, ...]
    subnets: tuple[str, str]
    public: str
    ports: PortRange = IAM_PORTS


ACCOUNT: Final = "111122223333"
SIDES: Final = (
    RegionNetwork(
        region="us-east-1",
        vpc="vpc-0a100000000000000",
        cidr="10.1.0.0/16",
        gateway="igw-0a100000000000000",
        cluster_group="sg-0a100000000000000",
        cluster_route_tables=("rtb-0a100000000000000",),
        subnets=("10.1.240.0/24", "10.1.241.0/24"),
        public="10.1.242.0/28",
    ),
    RegionNetwork(
        region="us-west-2",
        vpc="vpc-0b100000000000000",
        cidr="10.2.0.0/16",
        gateway="igw-0b100000000000000",
        cluster_group="sg-0b100000000000000",
        cluster_route_tables=("rtb-0b100000000000000",),
        subnets=("10.2.240.0/24", "10.2.241.0/24"),
        public="10.2.242.0/28",
    ),
)


class FunctionNetwork(Stack):
    """The network of one side. The first makes the peering connection, whose id the second is given."""

    def __init__(self, app: App, *, side: RegionNetwork, other: RegionNetwork, first: bool) -> None:
        super().__init__(
            app,
            f"mirrorless-network-{side.region}",
            env=Environment(account=ACCOUNT, region=side.region),
            description=f"Mirrorless: network between {side.region} and {other.region}",
        )
        peering = self._peering(side, other) if first else CfnParameter(self, "Peering").value_as_string
        private = self._subnets(side)
        for name, table in {"Functions": private, **dict(_numbered(side.cluster_route_tables))}.items():
            ec2.CfnRoute(
                self,
                f"{name}ToPeer",
                route_table_id=table,
                destination_cidr_block=other.cidr,
                vpc_peering_connection_id=peering,
            )
        self._groups(side, other)

    def _peering(self, side: RegionNetwork, other: RegionNetwork) -> str:
        made = ec2.CfnVPCPeeringConnection(
            self, "Peering", vpc_id=side.vpc, peer_vpc_id=other.vpc, peer_region=other.region, peer_owner_id=ACCOUNT
        )
        CfnOutput(self, "PeeringId", value=made.ref)
        return made.ref

    def _subnets(self, side: RegionNetwork) -> str:
        """Make the subnets. Returns: the route table of the private ones."""
        public = ec2.CfnSubnet(self, "Public", vpc_id=side.vpc, cidr_block=side.public, availability_zone=_zone(0))
        outside, inside = (
            ec2.CfnRouteTable(self, f"{name}Routes", vpc_id=side.vpc) for name in ("Public", "Functions")
        )
        self._associate("Public", public, outside)
        ec2.CfnRoute(
            self, "ToInternet", route_table_id=outside.ref, destination_cidr_block="0.0.0.0/0", gateway_id=side.gateway
        )
        address = ec2.CfnEIP(self, "Address", domain="vpc")
        nat = ec2.CfnNatGateway(self, "Nat", subnet_id=public.ref, allocation_id=address.attr_allocation_id)
        ec2.CfnRoute(
            self, "ToNat", route_table_id=inside.ref, destination_cidr_block="0.0.0.0/0", nat_gateway_id=nat.ref
        )
        for service in ("dynamodb", "s3"):
            # Gateways cost nothing: records of the offset map and files of jobs do not pass the NAT gateway.
            ec2.CfnVPCEndpoint(
                self,
                service,
                vpc_id=side.vpc,
                service_name=f"com.amazonaws.{side.region}.{service}",
                vpc_endpoint_type="Gateway",
                route_table_ids=[inside.ref],
            )
        private = [
            ec2.CfnSubnet(self, f"Functions{number}", vpc_id=side.vpc, cidr_block=cidr, availability_zone=_zone(number))
            for number, cidr in enumerate(side.subnets)
        ]
        for number, subnet in enumerate(private):
            self._associate(f"Functions{number}", subnet, inside)
        CfnOutput(self, "Subnets", value=Fn.join(",", [each.ref for each in private]))
        return inside.ref

    def _associate(self, name: str, subnet: ec2.CfnSubnet, table: ec2.CfnRouteTable) -> None:
        ec2.CfnSubnetRouteTableAssociation(self, f"{name}Table", subnet_id=subnet.ref, route_table_id=table.ref)

    def _groups(self, side: RegionNetwork, other: RegionNetwork) -> None:
        functions = ec2.CfnSecurityGroup(
            self,
            "FunctionsGroup",
            vpc_id=side.vpc,
            group_description="Mirrorless: functions and jobs",
            security_group_egress=[
                _rule("brokers here", side.cidr, side.ports),
                _rule("brokers of the other region", other.cidr, other.ports),
                _rule("AWS", "0.0.0.0/0", PortRange(HTTPS, HTTPS)),
            ],
        )
        # What the cluster's group must let in: pollers, which carry it, our functions, and those of the other region.
        allowed = {"pollers": side.cluster_group, "functions": functions.attr_group_id}
        for name, group in allowed.items():
            ec2.CfnSecurityGroupIngress(
                self,
                f"From-{name}",
                group_id=side.cluster_group,
                source_security_group_id=group,
                ip_protocol="tcp",
                from_port=side.ports.first,
                to_port=side.ports.last,
                description=f"Mirrorless: {name}",
            )
        for number, cidr in enumerate(other.subnets):
            ec2.CfnSecurityGroupIngress(
                self,
                f"From-{other.region}-{number}",
                group_id=side.cluster_group,
                cidr_ip=cidr,
                ip_protocol="tcp",
                from_port=side.ports.first,
                to_port=side.ports.last,
                description=f"Mirrorless: functions of {other.region}",
            )
        CfnOutput(self, "SecurityGroup", value=functions.attr_group_id)


def _zone(number: int) -> str:
    return Fn.select(number, Fn.get_azs())


def _rule(description: str, cidr: str, ports: PortRange) -> ec2.CfnSecurityGroup.EgressProperty:
    return ec2.CfnSecurityGroup.EgressProperty(
        ip_protocol="tcp",
        cidr_ip=cidr,
        from_port=ports.first,
        to_port=ports.last,
        description=f"Mirrorless: {description}",
    )


def _numbered(tables: Iterable[str]) -> Iterable[tuple[str, str]]:
    return ((f"Cluster{number}", table) for number, table in enumerate(tables))


def build(app: App) -> App:
    """Add both stacks."""
    here, there = SIDES
    FunctionNetwork(app, side=here, other=there, first=True)
    FunctionNetwork(app, side=there, other=here, first=False)
    Validations.of(app).add_plugins(AwsSolutionsChecks(app))
    return app


if __name__ == "__main__":
    build(App()).synth()
