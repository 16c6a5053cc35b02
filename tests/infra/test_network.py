"""Network access of functions and pollers: brokers and AWS, and nothing else of EC2 and MSK."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from aws_cdk import App

from docs.examples import two_regions
from infra.app import build
from infra.constructs.endpoints import HTTPS, endpoint_policy, endpoints_at, vpc_endpoints
from infra.deployment import plan
from infra.iam import Right
from infra.iam.statements import network_of, network_rights
from infra.synth import lint
from mirrorless.config import InvalidConfiguration, load
from mirrorless.config.broker_ports import CONNECTION_PORTS, PortRange, polled_ports, ports_of
from tests.support.assembly import CONTEXT
from tests.support.changed_examples import flows, of_type, replication, without_networks, written

MAPPING = "AWS::Lambda::EventSourceMapping"
FUNCTION = "AWS::Lambda::Function"
CLOSED = "    vpc:\n      id: vpc-0b100000000000000\n      endpoints: true\n"


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


def test_a_function_without_a_network_makes_no_interfaces(tmp_path: Path) -> None:
    flow = plan(load(without_networks(tmp_path, "active-active"))).flows[0]

    assert network_rights("refresh_topics", flow) == []


def test_what_removes_mappings_is_in_no_network_and_makes_no_interfaces() -> None:
    """It answers to CloudFormation over the internet; in a closed network a deletion would hang for an hour."""
    (flow,) = flows("active-passive")

    assert network_of("remove_mappings", flow) is None
    assert network_rights("remove_mappings", flow) == []


def test_flows_of_one_vpc_share_its_endpoints() -> None:
    found = vpc_endpoints(flows("aggregation"))

    assert [(each.vpc, each.services, each.route_tables) for each in found] == [
        ("vpc-0f100000000000000", ("lambda", "secretsmanager", "sts"), ("rtb-0f100000000000000",))
    ]


@pytest.mark.parametrize(
    ("authentication", "reads"),
    [("{type: tls, ca: root}", True), ("{type: oauthbearer, secret: client}", True), ("{type: iam}", False)],
)
def test_secrets_are_read_by_an_endpoint_where_there_are_any(
    tmp_path: Path, authentication: str, *, reads: bool
) -> None:
    source = "{type: mtls, secret: mirrorless/client-certificate, ca: mirrorless/authority}"
    config = written(
        tmp_path,
        "self-managed-to-msk",
        (source, f"{authentication}\n    region: eu-west-1"),
        ("vpc: {subnets", "vpc: {id: vpc-0a700000000000000, endpoints: true, subnets"),
    )

    (wanted,) = vpc_endpoints(plan(load(config)).flows)

    assert ("secretsmanager" in wanted.services) is reads


def test_a_network_without_the_setting_gets_no_endpoints() -> None:
    assert vpc_endpoints(flows("active-passive")) == []


def test_pollers_may_use_an_endpoint_before_they_have_a_role() -> None:
    (wanted,) = vpc_endpoints(flows("aggregation"))

    ours, lambdas = endpoint_policy("sts", wanted)["Statement"]

    assert lambdas["Principal"] == {"Service": "lambda.amazonaws.com"}
    assert (lambdas["Action"], lambdas["Resource"]) == ("sts:AssumeRole", "*")
    assert ours["Condition"] == {"StringEquals": {"aws:PrincipalAccount": ["111122223333"]}}
    assert len(endpoint_policy("secretsmanager", wanted)["Statement"]) == 1


def test_tables_that_no_endpoint_reaches_are_listed(tmp_path: Path) -> None:
    config = written(
        tmp_path,
        "active-passive",
        ("      id: vpc-0a100000000000000", "      id: vpc-0a100000000000000\n      endpoints: true"),
    )

    (wanted,) = vpc_endpoints(plan(load(config)).flows)

    assert wanted.elsewhere == ("us-west-2",)


def test_mappings_of_a_closed_network_wait_for_its_endpoints(tmp_path: Path) -> None:
    config = written(
        tmp_path, "aggregation", ("plant-north->analysis: {topics: [", "plant-north->analysis: {topics: [all, ")
    )
    resources = replication(config)

    (mapping,) = of_type(resources, MAPPING).values()

    assert set(of_type(resources, "AWS::EC2::VPCEndpoint")) <= set(mapping["DependsOn"])


@pytest.mark.parametrize("enabled", [True, False])
def test_jobs_reach_their_log_and_their_bucket_out_of_a_closed_network(tmp_path: Path, *, enabled: bool) -> None:
    config = written(
        tmp_path,
        "active-passive",
        (
            "    vpc:\n      subnets: [subnet-0b1",
            f"{CLOSED}      route.tables: [rtb-0b100000000000000]\n      subnets: [subnet-0b1",
        ),
        ("deployment:\n", f"deployment:\n  spark: {{enabled: {str(enabled).lower()}}}\n"),
    )
    deployment = plan(load(config))
    (there,) = deployment.states

    (wanted,) = endpoints_at(deployment, there)

    assert wanted.services == (("logs",) if enabled else ())
    assert wanted.gateways == (("dynamodb", "s3") if enabled else ("dynamodb",))
    assert wanted.made_by == "standby", "the stack of the first user has them for all"


def test_endpoints_of_a_network_that_only_jobs_use_are_made_beside_these(tmp_path: Path) -> None:
    config = written(
        tmp_path,
        "active-passive",
        (
            "    vpc:\n      subnets: [subnet-0b1",
            f"{CLOSED}      subnets: [subnet-0b1",
        ),
        ("    replication.factor: 3\n", "    replication.factor: 3\n    function: {standby.enabled: false}\n"),
    )
    deployment = plan(load(config))

    app = build(App(outdir=str(tmp_path / "out"), context=CONTEXT), deployment)
    app.synth()

    templates = {path.name: path.read_text() for path in (tmp_path / "out").glob("*.template.json")}
    assert [name for name, text in templates.items() if "AWS::EC2::VPCEndpoint" in text] == [
        "mirrorless-spark-us-west-2.template.json"
    ]


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


def test_endpoints_let_the_pollers_of_an_msk_cluster_in_that_carry_its_own_groups(tmp_path: Path) -> None:
    resources = replication(written(tmp_path, "aggregation"))

    ((id_, group),) = of_type(resources, "AWS::EC2::SecurityGroup").items()

    rules = group["Properties"]["SecurityGroupIngress"]
    assert {each["SourceSecurityGroupId"] for each in rules} == {"sg-0f300000000000000", "sg-0f400000000000000"}
    assert {(each["FromPort"], each["ToPort"]) for each in rules} == {(443, 443)}
    interfaces = [
        each["Properties"]
        for each in of_type(resources, "AWS::EC2::VPCEndpoint").values()
        if each["Properties"]["VpcEndpointType"] == "Interface"
    ]
    assert len(interfaces) == 3
    for each in interfaces:
        assert each["SecurityGroupIds"] == ["sg-0f100000000000000", {"Fn::GetAtt": [id_, "GroupId"]}]


def test_endpoints_for_pollers_are_refused_where_nothing_says_what_these_carry(tmp_path: Path) -> None:
    config = written(tmp_path, "aggregation", ("    msk.security.groups: [sg-0f300000000000000]\n", ""))
    with pytest.raises(InvalidConfiguration) as caught:
        plan(load(config))
    assert [each.where for each in caught.value.problems] == ["clusters.plant-north.msk.security.groups"]

    provisioned = config.read_text().replace("mode: on-demand", "mode: provisioned")
    assert vpc_endpoints(plan(load(provisioned)).flows)[0].pollers == ()
