"""Network access of functions and pollers: brokers and AWS, and nothing else of EC2 and MSK."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.constructs.endpoints import VpcEndpoints, endpoint_policy, vpc_endpoints
from infra.deployment import plan
from infra.iam import Right, network
from mirrorless.config import load
from tests.support.changed_examples import flows, of_type, replication, without_networks, written

MAPPING = "AWS::Lambda::EventSourceMapping"
FUNCTION = "AWS::Lambda::Function"


def by_action(rights: list[Right]) -> dict[str, tuple[str, ...]]:
    return {action: right.resources for right in rights for action in right.actions}


def test_pollers_of_a_self_managed_source_make_interfaces_where_the_flow_says_and_nowhere_else() -> None:
    (flow,) = flows("self-managed-to-msk")

    granted = by_action(network.rights("forward", flow))

    assert set(granted["ec2:CreateNetworkInterface"]) == {
        "arn:aws:ec2:eu-west-1:111122223333:subnet/subnet-0a700000000000000",
        "arn:aws:ec2:eu-west-1:111122223333:subnet/subnet-0a800000000000000",
        "arn:aws:ec2:eu-west-1:111122223333:security-group/sg-0a700000000000000",
        "arn:aws:ec2:eu-west-1:111122223333:network-interface/*",
    }
    assert not [action for action in granted if action.startswith("kafka:")]


def test_pollers_of_msk_look_up_their_own_cluster_only() -> None:
    (flow,) = flows("cross-account")

    granted = by_action(network.rights("forward", flow))

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
    )
    flow = plan(load(config)).flows[0]

    granted = by_action(network.rights("forward", flow))

    assert granted["kafka:DescribeVpcConnection"] == (arn,)
    assert granted["kafka:DescribeClusterV2"] == ("arn:aws:kafka:us-east-1:*:cluster/theirs/*",)
    assert flow.flow.mapping_request("payments")["EventSourceArn"] == arn


def test_a_function_without_a_network_makes_no_interfaces(tmp_path: Path) -> None:
    flow = plan(load(without_networks(tmp_path, "active-active"))).flows[0]

    assert network.rights("refresh_topics", flow) == []


def test_what_removes_mappings_is_in_no_network_and_makes_no_interfaces() -> None:
    """It answers to CloudFormation over the internet; in a closed network a deletion would hang for an hour."""
    (flow,) = flows("active-passive")

    assert network.network_of("remove_mappings", flow) is None
    assert network.rights("remove_mappings", flow) == []


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
    wanted = VpcEndpoints(
        vpc="vpc-1",
        subnets=(),
        security_groups=(),
        services=("sts",),
        route_tables=(),
        accounts=("111122223333",),
        elsewhere=(),
    )

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
