"""Two deployments side by side in one account and region, and accounts that join: names and who has them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from infra.deployment import ALIAS, plan
from infra.packaging.assets import HOLLOW
from infra.validation import validated
from mirrorless.config import InvalidConfiguration, load
from tests.support.assembly import EXAMPLES, Assembly, assemble
from tests.support.yaml_text import dump_yaml, load_yaml

NAMED = {
    *("TableName", "FunctionName", "RoleName", "BucketName", "LogGroupName", "AlarmName", "DashboardName"),
    *("Name", "TopicName", "PollerGroupName", "GroupName", "Namespace", "Path"),
}
"""Properties by which AWS finds a resource; a function is called by an ARN in a mapping."""


def names(value: Any) -> Iterator[str]:
    """Every name in a template that a deployment chose."""
    if isinstance(value, dict):
        for key, each in value.items():
            if key in NAMED and isinstance(each, str) and not each.startswith(("AWS/", "arn:")):
                if each != ALIAS:
                    yield each
            elif key != "Dimensions":
                yield from names(each)
    elif isinstance(value, list):
        for each in value:
            yield from names(each)


def with_name(name: str, example: str = "long-tail") -> str:
    document = load_yaml(EXAMPLES[example].read_text())
    document.setdefault("deployment", {})["name"] = name
    document["deployment"]["permissions.boundary"] = f"{name}-boundary"
    document["deployment"].setdefault("alarms", {})["email"] = "on-call@example.com"
    return dump_yaml(document)


@pytest.fixture(scope="module")
def staging(tmp_path_factory: pytest.TempPathFactory) -> Assembly:
    folder = tmp_path_factory.mktemp("staging")
    (config := folder / "staging.yaml").write_text(with_name("staging"))
    return assemble(config, folder / "out", **{HOLLOW: True})


def test_no_name_of_a_deployment_is_one_of_another(staging: Assembly, assembled: Callable[[str], Assembly]) -> None:
    def chosen(assembly: Assembly) -> set[str]:
        return {each for template in assembly.templates.values() for each in names(template["Resources"])}

    ours, theirs = chosen(assembled("long-tail")), chosen(staging)

    assert ours & theirs == set()
    assert len(theirs) > 30
    assert not {each for each in theirs if "staging" not in each}
    manifest = json.loads((staging.folder / "manifest.json").read_text())["artifacts"]
    stacks = [each["properties"] for each in manifest.values() if each["type"] == "aws:cloudformation:stack"]
    assert {each.get("stackName", "staging-").split("-")[0] for each in stacks} == {"staging"}


def test_every_role_has_the_deployments_boundary(staging: Assembly) -> None:
    roles = list(staging.resources("AWS::IAM::Role"))

    assert len(roles) > 5
    for role in roles:
        boundary = json.dumps(role.body["Properties"]["PermissionsBoundary"])
        assert ":policy/staging-boundary" in boundary


def test_no_right_of_a_deployment_is_about_another(staging: Assembly) -> None:
    """But those in Kafka: two deployments between the same clusters need other aliases."""
    text = json.dumps([each.body for each in staging.resources("AWS::IAM::Policy")])

    assert "mirrorless-" not in text.replace("mirrorless-look", "").replace("mirrorless-gaps", "").replace(
        "mirrorless-job", ""
    ).replace("mirrorless-pull", "")


def test_functions_emit_their_metrics_under_the_deployments_name(staging: Assembly) -> None:
    functions = [each.properties for each in staging.resources("AWS::Lambda::Function")]

    assert functions
    assert {each["Environment"]["Variables"]["MIRRORLESS_NAMESPACE"] for each in functions} == {"Mirrorless/staging"}


@pytest.mark.parametrize("name", ["a", "Staging", "my-name", "x" * 21, "9lives", "awsmirror", "ssm1", "sthree"])
def test_a_name_that_aws_would_refuse_is_refused(name: str) -> None:
    with pytest.raises(InvalidConfiguration, match=r"deployment\.name"):
        validated(with_name(name))


def test_a_stack_keeps_its_name_when_another_account_joins() -> None:
    """Its tables would be in no stack any more."""
    alone = load_yaml(EXAMPLES["active-passive"].read_text())
    region = "us-west-2"
    joined = load_yaml(EXAMPLES["active-passive"].read_text())
    joined["clusters"]["other"] = {
        "bootstrap.servers": ["b-1.example.com:9098"],
        "region": region,
        "account": "999988887777",
        "authentication": {"type": "iam"},
    }
    joined["flows"]["us-east->other"] = {"topics": ["orders"]}

    before, after = (validated(dump_yaml(each)) for each in (alone, joined))

    (place,) = before.states
    assert len([each for each in after.states if each.region == region]) == 2
    for kind in ("state", "spark", "standby"):
        assert before.stack_name(kind, place) == after.stack_name(kind, place) == f"mirrorless-{kind}-{region}"
        assert before.artifact_id(kind, place) == after.artifact_id(kind, place)
    ids = {after.artifact_id("state", each) for each in after.states}
    assert len(ids) == len(after.states)


def test_only_stacks_of_another_account_than_the_first_flows_have_it_in_their_ids() -> None:
    text = """
clusters:
  a: {bootstrap.servers: a:9092, region: us-east-1, account: "111122223333"}
  b: {bootstrap.servers: b:9092, region: us-east-1, account: "444455556666"}
flows:
  a->b: {topics: [orders], function: {run.in: source}}
  b->a: {topics: [bills], function: {run.in: source}}
"""
    deployment = plan(load(text))

    ids = [deployment.artifact_id("replication", flow.home) for flow in deployment.flows]

    assert ids == ["mirrorless-replication-us-east-1", "mirrorless-replication-us-east-1-444455556666"]
