"""What `make deploy` finds of networks: brokers and AWS that pollers, functions and jobs would not reach."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import boto3
import pytest
from moto import mock_aws

from infra.deployed import Lookups
from infra.deployment import plan
from infra.guard.verdict import ChangeFinding
from infra.networks import Networks, network_findings
from mirrorless.config import load

REGION = "us-east-1"
ACCOUNT = "123456789012"
CONNECTION = f"arn:aws:kafka:{REGION}:{ACCOUNT}:vpc-connection/999988887777/theirs/0f0e0d0c-1"

CONFIG = """
clusters:
  a:
    msk.cluster.arn: {arn}
    bootstrap.servers: [b-1.a.example.com:{port}]
    account: "123456789012"
    authentication: {authentication}
    msk.security.groups: [{cluster_group}]
    vpc: {{id: {vpc}, subnets: [{functions_subnet}], security.groups: [{functions_group}], endpoints: {endpoints}}}
  b: {{bootstrap.servers: [b-1.b.example.com:9096], region: us-east-1, account: "123456789012"}}
flows:
  a->b: {{topics: [orders], mapping: {{mode: {mode}}}}}
deployment: {{spark: {{enabled: false}}}}
"""
SCRAM = "{type: scram, secret: AmazonMSK_a, secret.kms.key.arn: 'arn:aws:kms:us-east-1:123456789012:key/1'}"


@dataclass(slots=True)
class Region:
    """A cluster in a VPC, functions beside it, and every rule that they need."""

    ec2: Any
    vpc: str
    cluster_subnet: str
    functions_subnet: str
    cluster_group: str
    functions_group: str
    arn: str
    lookups: Lookups = field(default_factory=Lookups)

    def allow(self, group: str, ports: tuple[int, int], peer: str, *, inbound: bool = True) -> None:
        """Add a rule."""
        call = self.ec2.authorize_security_group_ingress if inbound else self.ec2.authorize_security_group_egress
        call(GroupId=group, IpPermissions=[_permission(ports, peer)])

    def forbid(self, group: str, ports: tuple[int, int], peer: str, *, inbound: bool = True) -> None:
        """Take a rule away."""
        call = self.ec2.revoke_security_group_ingress if inbound else self.ec2.revoke_security_group_egress
        call(GroupId=group, IpPermissions=[_permission(ports, peer)])

    def close_outbound(self, group: str) -> None:
        """Take away what a new group has, the rule for everything."""
        everything = {"IpProtocol": "-1", "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}
        self.ec2.revoke_security_group_egress(GroupId=group, IpPermissions=[everything])

    def endpoint(self, service: str, group: str) -> None:
        """Make an interface endpoint."""
        self.ec2.create_vpc_endpoint(
            VpcId=self.vpc,
            ServiceName=f"com.amazonaws.{REGION}.{service}",
            VpcEndpointType="Interface",
            SubnetIds=[self.cluster_subnet],
            SecurityGroupIds=[group],
            PrivateDnsEnabled=True,
        )

    def found(
        self, changes: Mapping[str, str] | None = None, *, mode: str = "provisioned", endpoints: bool = False
    ) -> list[ChangeFinding]:
        """What is found of a flow from that cluster."""
        values = {
            "arn": self.arn,
            "port": "9096",
            "authentication": SCRAM,
            "vpc": self.vpc,
            "functions_subnet": self.functions_subnet,
            "functions_group": self.functions_group,
            "cluster_group": self.cluster_group,
        }
        text = CONFIG.format(**values | dict(changes or {}), mode=mode, endpoints=str(endpoints).lower())
        return list(network_findings(plan(load(text)), Networks(self.lookups)))


def _permission(ports: tuple[int, int], peer: str) -> dict[str, Any]:
    one = {"UserIdGroupPairs": [{"GroupId": peer}]} if peer.startswith("sg-") else {"IpRanges": [{"CidrIp": peer}]}
    return {"IpProtocol": "tcp", "FromPort": ports[0], "ToPort": ports[1], **one}


SCRAM_PORT = (9096, 9096)


@pytest.fixture
def region(credentials: None) -> Iterator[Region]:  # noqa: ARG001 -- it sets them
    """The region, sound."""
    with mock_aws():
        ec2 = boto3.client("ec2", region_name=REGION)
        vpc = ec2.create_vpc(CidrBlock="10.1.0.0/16")["Vpc"]["VpcId"]
        cluster, functions = (
            ec2.create_subnet(VpcId=vpc, CidrBlock=f"10.1.{each}.0/24")["Subnet"]["SubnetId"] for each in range(2)
        )
        of_cluster, of_functions = (
            ec2.create_security_group(GroupName=name, Description=name, VpcId=vpc)["GroupId"]
            for name in ("cluster", "functions")
        )
        nodes = {"ClientSubnets": [cluster], "SecurityGroups": [of_cluster], "InstanceType": "kafka.m7g.large"}
        made = boto3.client("kafka", region_name=REGION).create_cluster_v2(
            ClusterName="a",
            Provisioned={"BrokerNodeGroupInfo": nodes, "KafkaVersion": "3.9.x", "NumberOfBrokerNodes": 3},
        )
        region = Region(ec2, vpc, cluster, functions, of_cluster, of_functions, made["ClusterArn"])
        region.allow(of_cluster, SCRAM_PORT, of_cluster)
        region.allow(of_cluster, SCRAM_PORT, of_functions)
        yield region


def test_a_network_with_every_rule_is_sound(region: Region) -> None:
    assert region.found() == []


def test_the_clusters_group_must_let_itself_in_for_the_pollers_carry_it(region: Region) -> None:
    region.forbid(region.cluster_group, SCRAM_PORT, region.cluster_group)

    (finding,) = region.found()

    assert finding.refused
    assert finding.id == region.cluster_group
    assert "allows inbound TCP 9096 from the pollers of a" in finding.what


def test_ranges_that_hold_the_subnets_are_as_good_as_groups(region: Region) -> None:
    region.forbid(region.cluster_group, SCRAM_PORT, region.cluster_group)
    region.forbid(region.cluster_group, SCRAM_PORT, region.functions_group)
    region.allow(region.cluster_group, (9090, 9100), "10.1.0.0/24")
    (finding,) = region.found()
    assert "inbound TCP 9096 from the functions in us-east-1" in finding.what

    region.allow(region.cluster_group, (9096, 9097), "10.1.1.0/25")
    assert len(region.found()) == 1, "half of the functions' subnet"

    region.allow(region.cluster_group, (9096, 9097), "10.1.1.0/24")
    assert region.found() == []


def test_functions_must_be_let_out_to_brokers(region: Region) -> None:
    region.close_outbound(region.functions_group)
    region.allow(region.functions_group, (443, 443), "0.0.0.0/0", inbound=False)

    assert {(each.id, each.what.partition(" allows ")[2]) for each in region.found()} == {
        (region.functions_group, "outbound TCP 9096 to the brokers of a"),
        (region.functions_group, "outbound TCP 9096 to the brokers of b"),
    }

    region.allow(region.functions_group, SCRAM_PORT, "10.1.0.0/16", inbound=False)
    assert region.found() == []


def test_pollers_on_demand_need_a_way_to_lambda_sts_and_secrets(region: Region) -> None:
    assert [each.what.partition(" do not reach ")[2].partition(":")[0] for each in region.found(mode="on-demand")] == [
        "lambda",
        "sts",
        "secretsmanager",
    ]

    for service in ("lambda", "sts", "secretsmanager"):
        region.endpoint(service, region.functions_group)
    findings = region.found(mode="on-demand")
    assert [each.what for each in findings] == [
        f"the endpoint of {service} does not let the pollers of a in" for service in ("lambda", "sts", "secretsmanager")
    ]
    assert f"let {region.cluster_group} in on TCP 443 at {region.functions_group}" in findings[0].instead

    region.allow(region.functions_group, (443, 443), region.cluster_group)
    assert region.found(mode="on-demand") == []


def test_pollers_that_sign_by_their_role_need_no_way_to_secrets(region: Region) -> None:
    for peer in (region.cluster_group, region.functions_group):
        region.allow(region.cluster_group, (9098, 9098), peer)

    findings = region.found({"authentication": "{type: iam}", "port": "9098"}, mode="on-demand")

    assert [each.what.partition(" do not reach ")[2].partition(":")[0] for each in findings] == ["lambda", "sts"]


def test_a_nat_gateway_is_a_way_and_an_internet_gateway_is_none_for_interfaces_without_public_addresses(
    region: Region,
) -> None:
    table = region.ec2.create_route_table(VpcId=region.vpc)["RouteTable"]["RouteTableId"]
    region.ec2.associate_route_table(RouteTableId=table, SubnetId=region.cluster_subnet)
    gateway = region.ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
    region.ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=region.vpc)
    region.ec2.create_route(RouteTableId=table, DestinationCidrBlock="0.0.0.0/0", GatewayId=gateway)
    assert len(region.found(mode="on-demand")) == 3

    address = region.ec2.allocate_address(Domain="vpc")["AllocationId"]
    nat = region.ec2.create_nat_gateway(SubnetId=region.functions_subnet, AllocationId=address)["NatGateway"]
    region.ec2.replace_route(RouteTableId=table, DestinationCidrBlock="0.0.0.0/0", NatGatewayId=nat["NatGatewayId"])
    assert region.found(mode="on-demand") == []


def test_endpoints_that_the_deployment_makes_count_where_they_let_the_clusters_own_group_in(region: Region) -> None:
    assert region.found(mode="on-demand", endpoints=True) == []

    findings = region.found({"cluster_group": region.functions_group}, mode="on-demand", endpoints=True)

    assert [each.what for each in findings] == [
        f"the endpoint of {service} does not let the pollers of a in" for service in ("lambda", "sts", "secretsmanager")
    ]


def test_brokers_behind_a_vpc_connection_are_reached_on_its_hundred_ports(
    region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Kafka:
        """MSK's answer about a connection, which moto has not."""

        def describe_vpc_connection(self, **given: str) -> dict[str, Any]:
            assert given == {"Arn": CONNECTION}
            return {"Subnets": [region.cluster_subnet], "SecurityGroups": [region.cluster_group]}

    client = Lookups.client
    monkeypatch.setattr(
        Lookups, "client", lambda self, service, place: Kafka() if service == "kafka" else client(self, service, place)
    )
    connected = {"arn": CONNECTION, "port": "14001", "authentication": "{type: iam}"}

    for peer in (region.cluster_group, region.functions_group):
        region.allow(region.cluster_group, (14_001, 14_099), peer)
    assert [each.what.partition(" allows ")[2] for each in region.found(connected)] == [
        "inbound TCP 14001 to 14100 from the pollers of a",
        "inbound TCP 14001 to 14100 from the functions in us-east-1",
    ]

    for peer in (region.cluster_group, region.functions_group):
        region.allow(region.cluster_group, (14_001, 14_100), peer)
    assert region.found(connected) == []


def test_a_network_that_cannot_be_read_is_noted_and_refuses_nothing(region: Region) -> None:
    findings = region.found({"functions_subnet": "subnet-0123456789abcdef0"})

    assert findings
    assert not any(each.refused for each in findings)
    assert all("is not checked" in each.what and "subnet-0123456789abcdef0" in each.what for each in findings)
