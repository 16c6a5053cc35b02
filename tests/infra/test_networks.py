"""Networks: what functions and pollers may reach of them, and what `make deploy` finds that they would not reach."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import boto3
import pytest
from aws_cdk import App
from botocore.stub import Stubber
from moto import mock_aws

from docs.examples import two_regions
from infra.constructs.endpoints import HTTPS, endpoint_policy, endpoints_at, vpc_endpoints
from infra.deployed import LOOKUP, Lookups
from infra.deployment import Location, plan
from infra.guard.verdict import ChangeFinding
from infra.iam import Right
from infra.iam.calls import PARTS
from infra.iam.statements import mapping_rights, network_of, network_rights
from infra.networks import Networks, network_findings
from infra.packaging.assets import HOLLOW
from infra.quotas import quota_findings
from infra.stacks.spark import SparkStack
from infra.synth import lint
from mirrorless.config import InvalidConfiguration, load
from mirrorless.config.broker_ports import CONNECTION_PORTS, PortRange, polled_ports, ports_of
from tests.support.assembly import CONTEXT
from tests.support.changed_examples import flows, of_type, replication, without_networks, written
from tests.support.planned_flows import deployment

MAPPING = "AWS::Lambda::EventSourceMapping"
CLOSED_VPC = {
    "id": "vpc-0b100000000000000",
    "subnets": ["subnet-0b100000000000000"],
    "security.groups": ["sg-0b100000000000000"],
    "endpoints": True,
}


def by_action(rights: list[Right]) -> dict[str, tuple[str, ...]]:
    return {action: right.resources for right in rights for action in right.actions}


def test_pollers_of_a_self_managed_source_make_interfaces_where_the_flow_says_and_nowhere_else() -> None:
    (flow,) = flows("self-managed-to-msk")

    granted = by_action(network_rights("forward", flow))

    assert set(granted["ec2:CreateNetworkInterface"]) == {
        "arn:aws:ec2:eu-west-1:111122223333:subnet/subnet-0a700000000000000",
        "arn:aws:ec2:eu-west-1:111122223333:subnet/subnet-0a800000000000000",
        "arn:aws:ec2:eu-west-1:111122223333:security-group/sg-0a700000000000000",
        "arn:aws:ec2:eu-west-1:111122223333:network-interface/*",
    }
    assert not [action for action in granted if action.startswith("kafka:")]


def test_pollers_of_msk_look_up_their_own_cluster_only() -> None:
    (flow,) = flows("cross-account")

    granted = by_action(network_rights("forward", flow))

    for action in ("kafka:DescribeCluster", "kafka:DescribeClusterV2", "kafka:ListScramSecrets"):
        assert granted[action] == (flow.flow.source.msk_arn,)
    assert "kafka:DescribeVpcConnection" not in granted


def test_a_vpc_connection_is_looked_up_with_the_cluster_it_stands_for(tmp_path: Path) -> None:
    arn = (
        "arn:aws:kafka:us-east-1:999988887777:vpc-connection/111122223333/theirs/4f506172-8394-4a51-b2c3-d4e5f6071888-8"
    )
    config = written(
        tmp_path,
        "active-passive",
        (
            "arn:aws:kafka:us-east-1:111122223333:cluster/us-east/6cc0432b-8618-4f44-bccc-e1fbd8fb7c4d-2",
            f'{arn}\n    account: "111122223333"',
        ),
        ("b-1.useast.example.com:9098, b-2.useast.example.com:9098", "b-1.useast.example.com:14001"),
    )
    flow = plan(load(config)).flows[0]

    granted = by_action(network_rights("forward", flow))

    assert granted["kafka:DescribeVpcConnection"] == (arn,)
    assert granted["kafka:DescribeClusterV2"] == ("arn:aws:kafka:us-east-1:*:cluster/theirs/*",)
    assert flow.flow.mapping_request("payments")["EventSourceArn"] == arn
    makers = [part for part in PARTS if "kafka:ListVpcConnections" in by_action(mapping_rights(part, flow))]
    assert makers == ["refresh_topics"], "it makes the mappings of found topics"
    ordinary = flows("active-passive")[0]
    assert "kafka:ListVpcConnections" not in by_action(mapping_rights("refresh_topics", ordinary))


def test_what_is_in_no_network_makes_no_interfaces_and_a_network_without_the_setting_gets_no_endpoints(
    tmp_path: Path,
) -> None:
    """What removes mappings answers to CloudFormation over the internet: a closed network would hang for an hour."""
    (flow,) = flows("active-passive")
    without = plan(load(without_networks(tmp_path, "active-active"))).flows[0]

    assert network_of("remove_mappings", flow) is None
    assert network_rights("remove_mappings", flow) == network_rights("refresh_topics", without) == []
    assert vpc_endpoints([flow]) == []


def test_flows_of_one_vpc_share_its_endpoints() -> None:
    found = vpc_endpoints(flows("aggregation"))

    assert [(each.vpc, each.services, each.route_tables) for each in found] == [
        ("vpc-0f100000000000000", ("lambda", "secretsmanager", "sts"), ("rtb-0f100000000000000",))
    ]


PULLED = {"trigger": "schedule", "schedule": {"run.in": "source"}}
AT_SOURCE: dict[str, Any] = {"function": {"run.in": "source"}}
ALONE = {"function": {"run.in": "source", "standby.enabled": False}}
NO_JOBS = {"spark": {"enabled": False}}


@pytest.mark.parametrize(
    ("end", "flow", "more", "made_by", "services"),
    [
        # Each user makes those of its network, and the first of them those of all.
        pytest.param("source", PULLED | AT_SOURCE, {}, "home", ("lambda", "sts"), id="functions, and a reader"),
        pytest.param("source", PULLED | {"mapping": {"mode": "on-demand"}}, {}, "pull", ("sts",), id="a reader"),
        pytest.param("target", {"function": {"run.in": "target"}}, {}, "home", ("lambda", "logs"), id="with jobs"),
        pytest.param("target", AT_SOURCE, {"deployment": NO_JOBS}, "standby", (), id="a standby"),
        pytest.param("target", AT_SOURCE, {}, "standby", ("logs",), id="a standby, and jobs"),
        pytest.param("target", ALONE, {}, "jobs", ("logs",), id="jobs"),
        # What proves a client, or an authority, is read there.
        *(
            pytest.param("source", ALONE, {"source": {"authentication": proof}}, "home", read, id=str(proof["type"]))
            for proof, read in (
                ({"type": "tls", "ca": "root"}, ("lambda", "secretsmanager", "sts")),
                ({"type": "oauthbearer", "secret": "client"}, ("lambda", "secretsmanager", "sts")),
                ({"type": "iam"}, ("lambda", "sts")),
            )
        ),
    ],
)
def test_endpoints_are_made_once_in_a_network_for_whoever_is_in_it(
    end: str, flow: dict[str, Any], more: dict[str, Any], made_by: str, services: tuple[str, ...]
) -> None:
    found = deployment(flow, **more | {end: {"vpc": CLOSED_VPC, **more.get(end, {})}})
    region = "us-east-1" if end == "source" else "eu-west-1"
    (place,) = (each for each in found.places if each.region == region)

    (wanted,) = endpoints_at(found, place)

    assert (wanted.made_by, wanted.services) == (made_by, services)
    assert wanted.gateways == (("dynamodb", "s3") if "logs" in services else ("dynamodb",))
    assert wanted.elsewhere == (("eu-west-1",) if end == "source" else ()), "tables that no endpoint reaches"
    assert set(wanted.accounts) >= {place.account, "444455556666"}


def test_pollers_may_use_an_endpoint_before_they_have_a_role() -> None:
    (wanted,) = vpc_endpoints(flows("aggregation"))

    ours, lambdas = endpoint_policy("sts", wanted)["Statement"]

    assert lambdas["Principal"] == {"Service": "lambda.amazonaws.com"}
    assert (lambdas["Action"], lambdas["Resource"]) == ("sts:AssumeRole", "*")
    assert ours["Condition"] == {"StringEquals": {"aws:PrincipalAccount": ["111122223333"]}}
    assert len(endpoint_policy("secretsmanager", wanted)["Statement"]) == 1


def test_mappings_of_a_closed_network_wait_for_its_endpoints_which_let_the_clusters_own_groups_in(
    tmp_path: Path,
) -> None:
    """The pollers of an MSK cluster carry its groups."""
    topics = ("plant-north->analysis: {topics: [", "plant-north->analysis: {topics: [all, ")
    resources = replication(written(tmp_path, "aggregation", topics))

    (mapping,) = of_type(resources, MAPPING).values()
    endpoints = of_type(resources, "AWS::EC2::VPCEndpoint")
    ((id_, group),) = of_type(resources, "AWS::EC2::SecurityGroup").items()
    rules = group["Properties"]["SecurityGroupIngress"]
    attached = [each["Properties"].get("SecurityGroupIds") for each in endpoints.values()]

    assert set(endpoints) <= set(mapping["DependsOn"])
    assert {each["SourceSecurityGroupId"] for each in rules} == {"sg-0f300000000000000", "sg-0f400000000000000"}
    assert {(each["FromPort"], each["ToPort"]) for each in rules} == {(443, 443)}
    assert attached.count(["sg-0f100000000000000", {"Fn::GetAtt": [id_, "GroupId"]}]) == 3
    assert [each["Properties"]["VpcEndpointType"] for each in endpoints.values()].count("Interface") == 3


def test_endpoints_of_a_network_that_only_jobs_use_are_made_beside_these(tmp_path: Path) -> None:
    found = deployment(ALONE, target={"vpc": CLOSED_VPC})
    app = App(outdir=str(tmp_path / "out"), context={**CONTEXT, HOLLOW: True})
    stack = SparkStack(app, deployment=found, place=found.states[0])

    assert of_type(app.synth().get_stack_by_name(stack.stack_name).template["Resources"], "AWS::EC2::VPCEndpoint")


def test_the_example_of_a_network_is_sound_and_lets_everyone_in_who_reads_and_writes(tmp_path: Path) -> None:
    two_regions.build(App(outdir=str(tmp_path))).synth()
    paths = sorted(tmp_path.glob("*.template.json"))
    lint(paths, (side.region for side in two_regions.SIDES))

    for path, side, other in zip(paths, two_regions.SIDES, reversed(two_regions.SIDES), strict=True):
        resources = json.loads(path.read_text())["Resources"]
        rules = [each["Properties"] for each in of_type(resources, "AWS::EC2::SecurityGroupIngress").values()]
        assert {each["GroupId"] for each in rules} == {side.cluster_group}
        (functions,) = of_type(resources, "AWS::EC2::SecurityGroup")
        assert [each.get("SourceSecurityGroupId") for each in rules if "CidrIp" not in each] == [
            side.cluster_group,
            {"Fn::GetAtt": [functions, "GroupId"]},
        ]
        assert [each["CidrIp"] for each in rules if "CidrIp" in each] == list(other.subnets)
        routes = [each["Properties"] for each in of_type(resources, "AWS::EC2::Route").values()]
        peered = [each["RouteTableId"] for each in routes if each["DestinationCidrBlock"] == other.cidr]
        assert len(peered) == 1 + len(side.cluster_route_tables)


PORTS = {"with IAM": (two_regions.IAM_PORTS, "9098"), "behind VPC connections": (CONNECTION_PORTS, "14001")}


@pytest.mark.parametrize(("ports", "port"), PORTS.values(), ids=[name.replace(" ", "-") for name in PORTS])
def test_the_rules_of_the_example_cover_the_ports_of_the_configuration_that_goes_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ports: PortRange, port: str
) -> None:
    connected = port != "9098"
    changes = [(":9098", f":{port}"), ("111122223333:cluster/", "111122223333:vpc-connection/444455556666/")]
    config = load(written(tmp_path, "active-passive", *(changes if connected else ())))
    monkeypatch.setattr(two_regions, "SIDES", tuple(replace(side, ports=ports) for side in two_regions.SIDES))
    out = tmp_path / "out"
    two_regions.build(App(outdir=str(out))).synth()

    for end in (config.enabled_flows[0].source, config.enabled_flows[0].target):
        resources = json.loads((out / f"mirrorless-network-{end.region}.template.json").read_text())["Resources"]
        inbound = [each["Properties"] for each in of_type(resources, "AWS::EC2::SecurityGroupIngress").values()]
        (functions,) = of_type(resources, "AWS::EC2::SecurityGroup").values()
        outbound = [each for each in functions["Properties"]["SecurityGroupEgress"] if each["ToPort"] != HTTPS]
        assert len(inbound) == 4
        assert len(outbound) == 2
        for rule in (*inbound, *outbound):
            opened = PortRange(rule["FromPort"], rule["ToPort"])
            assert all(opened.covers(each) for each in (*ports_of(end), polled_ports(end))), rule


def test_endpoints_for_pollers_are_refused_where_nothing_says_what_these_carry(tmp_path: Path) -> None:
    config = written(tmp_path, "aggregation", ("    msk.security.groups: [sg-0f300000000000000]\n", ""))
    with pytest.raises(InvalidConfiguration) as caught:
        plan(load(config))
    assert [each.where for each in caught.value.problems] == ["clusters.plant-north.msk.security.groups"]

    provisioned = config.read_text().replace("mode: on-demand", "mode: provisioned")
    assert vpc_endpoints(plan(load(provisioned)).flows)[0].pollers == ()


# What `make deploy` finds

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
SERVICES = ("lambda", "sts", "secretsmanager")
NOT_LET_IN = [f"the endpoint of {service} does not let the pollers of a in" for service in SERVICES]


@pytest.fixture
def region(monkeypatch: pytest.MonkeyPatch) -> Iterator[Region]:
    """The region, sound."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, "testing")
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


def test_the_clusters_group_must_let_itself_in_for_the_pollers_carry_it(region: Region) -> None:
    assert region.found() == []

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


def unreached(findings: list[ChangeFinding]) -> list[str]:
    """The services that pollers have no way to."""
    return [each.what.partition(" do not reach ")[2].partition(":")[0] for each in findings]


def test_pollers_on_demand_need_a_way_to_lambda_sts_and_unless_they_sign_by_their_role_secrets(region: Region) -> None:
    for peer in (region.cluster_group, region.functions_group):
        region.allow(region.cluster_group, (9098, 9098), peer)
    signing = region.found({"authentication": "{type: iam}", "port": "9098"}, mode="on-demand")
    assert unreached(signing) == ["lambda", "sts"]
    assert unreached(region.found(mode="on-demand")) == [*SERVICES]

    for service in SERVICES:
        region.endpoint(service, region.functions_group)
    findings = region.found(mode="on-demand")
    assert [each.what for each in findings] == NOT_LET_IN
    assert f"let {region.cluster_group} in on TCP 443 at {region.functions_group}" in findings[0].instead

    region.allow(region.functions_group, (443, 443), region.cluster_group)
    assert region.found(mode="on-demand") == []


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

    assert [each.what for each in findings] == NOT_LET_IN


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


# Quotas

SUBNET = "subnet-0a100000000000000"
VPC = {"subnets": [SUBNET], "security.groups": ["sg-0a100000000000000"]}
ONE_PLACE = {"region": REGION, "account": ACCOUNT, "vpc": VPC}


class Answers(Lookups):
    """What AWS answers about an account; None of them where it lets nobody look."""

    def __init__(self, concurrency: int | None, vcpu: int, zone: str) -> None:
        super().__init__()
        subnet = {"SubnetId": SUBNET, "AvailabilityZoneId": zone}
        self.answers: Mapping[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
            "lambda": ("get_account_settings", {"AccountLimit": {"ConcurrentExecutions": concurrency}}, {}),
            "service-quotas": (
                "get_service_quota",
                {"Quota": {"Value": float(vcpu)}},
                {"ServiceCode": "emr-serverless", "QuotaCode": "L-D05C8A75"},
            ),
            "ec2": ("describe_subnets", {"Subnets": [subnet]}, {"SubnetIds": [SUBNET]}),
        }
        self.denied = concurrency is None

    def client(self, service: str, place: Location, *, role: str = LOOKUP) -> Any:
        """See `Lookups`; the requests are held to botocore's models."""
        client = boto3.client(service, region_name=place.region)
        operation, answer, request = self.answers[service]
        stub = Stubber(client)
        if self.denied:
            stub.add_client_error(operation, "AccessDeniedException")
        else:
            stub.add_response(operation, answer, request)
        stub.activate()
        assert role == LOOKUP
        return client


RESERVED = {"function": {"reserved.concurrency": 50}}


@pytest.mark.parametrize(
    ("flow", "account", "found"),
    [
        pytest.param({}, (1000, 64, "use1-az1"), [], id="an account of some age"),
        pytest.param({}, (2, 64, "use1-az1"), ["3 functions may run at once, and it has 2"], id="concurrency"),
        pytest.param({}, (1000, 16, "use1-az1"), ["may take 64 vCPU at once, and it has 16"], id="vCPU"),
        pytest.param({}, (1000, 64, "use1-az3"), ["is in use1-az3, where no job runs"], id="a zone"),
        pytest.param(RESERVED, (10, 64, "use1-az1"), ["REFUSED", "takes 50 of 10 concurrent"], id="a reservation"),
        pytest.param(
            RESERVED, (149, 64, "use1-az1"), ["REFUSED", "takes 50 of 149"], id="a reservation that leaves too little"
        ),
        pytest.param(RESERVED, (150, 64, "use1-az1"), [], id="a reservation that leaves enough"),
        pytest.param({}, (None, 64, "use1-az1"), ["AccessDeniedException"] * 3, id="what is not answered"),
    ],
)
def test_what_a_new_account_has_too_little_of_is_named_before_anything_is_made(
    flow: dict[str, Any], account: tuple[int | None, int, str], found: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    wanted = deployment(flow, source=ONE_PLACE, target=ONE_PLACE)

    told = [*quota_findings(wanted, Answers(*account))]

    text = " ".join(" ".join(map(str, told)).split())
    assert len(told) == len(found) - ("REFUSED" in found)
    for each in found:
        assert each in text
        text = text.replace(each, "", 1)
    assert any(each.refused for each in told) is ("REFUSED" in found)
