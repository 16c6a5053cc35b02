"""What schedules start: the scheduled functions, the reader of scheduled topics, the standby; and their rights."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aws_cdk import App

from infra.deployment import plan
from infra.guard.templates import Resource
from infra.iam import Part
from infra.iam.kafka_names import scheduled_topics
from infra.iam.statements import (
    kafka_rights,
    network_of,
    network_rights,
    secret_rights,
    table_rights,
    tables_role_rights,
)
from infra.packaging.assets import HOLLOW
from infra.stacks.home import FunctionStack, pull_starts, scheduled_functions
from infra.stacks.state import trusted
from mirrorless.config import load
from mirrorless.config.problems import InvalidConfiguration
from mirrorless.cost.bill import standby
from mirrorless.flow.naming import CONTROL_CALLS_VARIABLE
from mirrorless.flow.settings import control_settings, pull_settings
from mirrorless.scheduled.functions import PULL_TIMEOUT_SECONDS
from mirrorless.scheduled.functions import SCHEDULED as FUNCTIONS
from tests.support.assembly import CONTEXT, EXAMPLES, Assembly
from tests.support.changed_examples import written
from tests.support.iam import role_statements
from tests.support.planned_flows import deployment, planned

Assembled = Callable[[str], Assembly]

SCHEDULED: dict[str, Any] = {"trigger": "schedule"}
AT_SOURCE: dict[str, Any] = {"function": {"run.in": "source"}}
SAME_REGION = {"region": "us-east-1"}
VPC = {
    "id": "vpc-0a100000000000000",
    "subnets": ["subnet-0a100000000000000"],
    "security.groups": ["sg-0a100000000000000"],
    "endpoints": True,
}


def of_type(assembly: Assembly, type_: str, *, kind: str = "control") -> list[Resource]:
    return list(assembly.resources(type_, stack=f"mirrorless-{kind}-"))


def schedule(assembly: Assembly, name: str) -> Resource:
    return assembly.only("AWS::Scheduler::Schedule", Name=name)


def named(value: Any) -> Iterator[str]:
    """The resources that a part of a template refers to."""
    if isinstance(value, dict):
        if isinstance(reference := value.get("Ref"), str):
            yield reference
        if reference := value.get("Fn::GetAtt"):
            yield reference[0]
        for part in value.values():
            yield from named(part)
    elif isinstance(value, list):
        for part in value:
            yield from named(part)


def needs(assembly: Assembly, resource: Resource) -> set[str]:
    """Every resource that is there before this one, and that goes after it."""
    resources = assembly.templates[resource.stack]["Resources"]
    found: set[str] = set()
    waiting = [resource.id]
    while waiting:
        body = resources[waiting.pop()]
        depends = body.get("DependsOn", [])
        direct = {*named(body.get("Properties", {})), *([depends] if isinstance(depends, str) else depends)}
        waiting += direct - found
        found |= direct
    return found


# What starts them


@pytest.mark.parametrize("example", EXAMPLES)
def test_each_flow_is_started_every_minute_with_its_own_settings_by_its_aliases(
    example: str, assembled: Assembled
) -> None:
    assembly = assembled(example)
    schedules = of_type(assembly, "AWS::Scheduler::Schedule")

    assert len(schedules) == len(FUNCTIONS) * len(assembly.deployment.flows)
    for flow in assembly.deployment.flows:
        for each in FUNCTIONS:
            name = flow.flow.resource_name(each.name)
            properties = schedule(assembly, name).properties
            target = properties["Target"]
            assert properties["ScheduleExpression"] == "rate(1 minute)"
            assert properties["FlexibleTimeWindow"] == {"Mode": "OFF"}
            assert target["Arn"] == f"{flow.function_arn(each.name)}:live"
            settings = control_settings(json.loads(target["Input"]))
            assert settings == flow.schedule_input()
            assert settings.name == flow.flow.name
            assert settings.function_name == f"{flow.flow.resource_name('forward')}:live"


def test_a_schedule_says_in_plain_what_its_input_says_in_one_line(assembled: Assembled) -> None:
    """So that `cdk diff` shows a changed setting by its name."""
    for each in of_type(assembled("active-passive"), "AWS::Scheduler::Schedule"):
        shown = each.body["Metadata"]["mirrorless"]
        assert shown["flow"] == "us-east->us-west"
        assert shown["settings"]["sync.group.offsets.enabled"] == "true"


@pytest.mark.parametrize("example", EXAMPLES)
def test_a_failed_start_is_not_repeated(example: str, assembled: Assembled) -> None:
    """Scheduler, and Lambda's own queue behind it: each would try again while the next minute is at work."""
    assembly = assembled(example)
    functions = {each.properties["Target"]["Arn"] for each in assembly.resources("AWS::Scheduler::Schedule")}
    queues = list(assembly.resources("AWS::Lambda::EventInvokeConfig"))

    for each in assembly.resources("AWS::Scheduler::Schedule"):
        assert each.properties["Target"]["RetryPolicy"] == {"MaximumRetryAttempts": 0, "MaximumEventAgeInSeconds": 60}
    assert len(queues) == len(functions)
    for each in queues:
        assert (each.properties["MaximumRetryAttempts"], each.properties["MaximumEventAgeInSeconds"]) == (0, 60)
        assert each.properties["Qualifier"] == "live"


def test_the_role_of_a_schedule_starts_its_flows_two_functions_for_this_accounts_group_only(
    assembled: Assembled,
) -> None:
    assembly = assembled("hub-and-spoke")
    of_paris = schedule(assembly, "mirrorless-control-paris_hub")
    (role_id,) = named(of_paris.properties["Target"]["RoleArn"])
    role = Resource(of_paris.stack, role_id, assembly.templates[of_paris.stack]["Resources"][role_id])
    here = "eu-west-3:111122223333"

    (trust,) = role.properties["AssumeRolePolicyDocument"]["Statement"]
    assert trust["Principal"] == {"Service": "scheduler.amazonaws.com"}
    assert trust["Condition"]["StringEquals"] == {
        "aws:SourceAccount": "111122223333",
        "aws:SourceArn": f"arn:aws:scheduler:{here}:schedule-group/mirrorless",
    }
    (right,) = role_statements(assembly, role)
    assert (right["Action"], right["Resource"]) == (
        "lambda:InvokeFunction",
        [f"arn:aws:lambda:{here}:function:mirrorless-{each}-paris_hub:live" for each in ("control", "refresh-topics")],
    )


def test_a_key_of_the_customers_encrypts_the_schedules_and_opens_them_for_their_role_only(assembled: Assembled) -> None:
    assembly = assembled("aggregation")
    (key,) = assembly.deployment.settings.kms_key_arns
    opened = {
        tuple(statement["Condition"]["ArnEquals"]["kms:EncryptionContext:aws:scheduler:schedule:arn"])
        for policy in of_type(assembly, "AWS::IAM::Policy")
        for statement in policy.properties["PolicyDocument"]["Statement"]
        if statement["Action"] == "kms:Decrypt" and "ArnEquals" in statement.get("Condition", {})
    }

    for each in of_type(assembly, "AWS::Scheduler::Schedule"):
        assert each.properties["KmsKeyArn"] == key
    prefix = "arn:aws:scheduler:us-east-2:111122223333:schedule/mirrorless/mirrorless"
    assert opened == {
        (f"{prefix}-control-{flow}", f"{prefix}-refresh-topics-{flow}")
        for flow in ("plant-north_analysis", "plant-south_analysis")
    }


def test_nothing_is_started_for_tasks_that_are_all_switched_off() -> None:
    off = dict.fromkeys(("refresh.topics.enabled", "sync.topic.configs.enabled", "sync.topic.acls.enabled"), False)

    assert [each.name for each in scheduled_functions(planned(off))] == ["control"]
    assert len(scheduled_functions(planned(off | {"sync.topic.acls.enabled": True}))) == 2


@pytest.mark.parametrize(
    ("deployment", "shares"),
    [
        ("", {"paris->hub": 10, "dublin->hub": 10, "hub->paris": 5, "hub->dublin": 5}),
        (
            "deployment: {control.calls.per.second: 3}\n",
            {"paris->hub": 3, "dublin->hub": 3, "hub->paris": 1.5, "hub->dublin": 1.5},
        ),
    ],
)
def test_flows_at_one_home_share_the_control_calls_of_its_account(
    deployment: str, shares: dict[str, float], tmp_path: Path
) -> None:
    """Lambda answers fifteen a second to all of an account and region together; several files divide them."""
    config = written(tmp_path, "hub-and-spoke", ("clusters:", f"{deployment}clusters:"))
    flows = {flow.name: flow for flow in plan(load(config)).flows}

    found = {name: flow.schedule_input().control_calls_per_second for name, flow in flows.items()}
    removals = {name: flow.control_calls_variables.get(CONTROL_CALLS_VARIABLE, "10") for name, flow in flows.items()}

    assert found == shares
    assert removals == {name: f"{share:g}" for name, share in shares.items()}


# In which order they go


@pytest.mark.parametrize("example", EXAMPLES)
def test_what_found_topics_goes_before_what_was_found_and_that_before_what_deletes_it(
    example: str, assembled: Assembled
) -> None:
    assembly = assembled(example)

    for flow in assembly.deployment.flows:
        refresh = schedule(assembly, flow.flow.resource_name("refresh_topics"))
        resources = assembly.templates[refresh.stack]["Resources"]
        remover = assembly.only("AWS::Lambda::Function", FunctionName=flow.flow.resource_name("remove_mappings")).id
        token = {"Fn::GetAtt": [remover, "Arn"]}
        found = assembly.only("Custom::MirrorlessFoundMappings", stack=refresh.stack, ServiceToken=token)
        role = next(named(resources[remover]["Properties"]["Role"]))
        policies = {
            id_
            for id_, each in resources.items()
            if each["Type"] == "AWS::IAM::Policy" and {"Ref": role} in each["Properties"]["Roles"]
        }
        assert found.id in needs(assembly, refresh)
        assert policies
        assert {remover, role, *policies} <= needs(assembly, found)
        assert refresh.id not in needs(assembly, found)


def test_the_removal_runs_where_its_answer_gets_out_and_cloudformation_waits_longer_than_it_lasts(
    assembled: Assembled,
) -> None:
    (found,) = of_type(assembled("active-passive"), "Custom::MirrorlessFoundMappings")
    assert 2 * 600 < int(found.properties["ServiceTimeout"]) < 3600, "and not for an hour"
    functions = of_type(assembled("active-passive"), "AWS::Lambda::Function")

    assert {each.properties["FunctionName"].split("-")[1]: "VpcConfig" in each.properties for each in functions} == {
        "control": True,
        "refresh": True,
        "remove": False,
    }


# The reader of scheduled topics


def test_each_shard_has_a_schedule_whose_input_is_its_settings(assembled: Assembled) -> None:
    assembly = assembled("long-tail")
    (flow,) = assembly.deployment.flows
    schedules = {
        str(each.properties["Name"]): each.properties
        for each in of_type(assembly, "AWS::Scheduler::Schedule", kind="pull")
    }

    assert schedules.keys() == {"mirrorless-pull-0-shop_archive", "mirrorless-pull-1-shop_archive"}
    for shard, properties in enumerate(schedules.values()):
        target = properties["Target"]
        settings = pull_settings(json.loads(target["Input"]))
        assert properties["ScheduleExpression"] == "rate(5 minutes)"
        assert target["Arn"] == "arn:aws:lambda:eu-central-1:111122223333:function:mirrorless-pull-shop_archive:live"
        assert (settings.shard, settings.shards, settings.interval_seconds) == (shard, 2, 300)
        assert (settings.continuous, settings.maximum_bytes_per_second) == (False, 20_000_000)
        assert settings.flow.name == flow.flow.name
        assert list(settings.flow.trigger_overrides.items()) == [("events-.*", "schedule"), ("audit", "mapping")]


@pytest.mark.parametrize(
    ("schedule", "minutes"),
    [({"continuous": True}, 1), ({}, 5), ({"interval.seconds": 60}, 1), ({"interval.seconds": 86_400}, 1_440)],
)
def test_a_continuous_shard_is_started_every_minute_and_any_other_by_its_interval(
    schedule: dict[str, Any], minutes: int
) -> None:
    shared = {"schedule": {"interval.seconds": 300, "shards": 3}}

    starts = pull_starts(planned(SCHEDULED | {"schedule": schedule}, defaults=shared))

    assert [(each.minutes, json.loads(each.input)["shard"]) for each in starts] == [(minutes, n) for n in range(3)]


def test_the_schedules_have_a_group_of_their_own_by_which_alone_they_start_the_function(assembled: Assembled) -> None:
    """That of the other schedules belongs to a stack that may be in the same region."""
    assembly = assembled("long-tail")
    (group,) = of_type(assembly, "AWS::Scheduler::ScheduleGroup", kind="pull")
    conditions = [
        json.dumps(statement["Condition"])
        for role in of_type(assembly, "AWS::IAM::Role", kind="pull")
        for statement in role.properties["AssumeRolePolicyDocument"]["Statement"]
        if "Condition" in statement
    ]

    assert group.properties["Name"] == "mirrorless-pull"
    assert ["schedule-group/mirrorless-pull" in each for each in conditions] == [True]


def test_topics_of_an_entry_are_not_mapped_and_their_reader_is_there_before_their_mapping_goes(
    assembled: Assembled,
) -> None:
    assembly = assembled("long-tail")
    mapped = [each.properties["Topics"] for each in assembly.resources("AWS::Lambda::EventSourceMapping")]
    assert sorted(mapped) == [["orders"], ["payments"]]
    (function,) = of_type(assembly, "AWS::Lambda::Function", kind="pull")
    assert function.properties["Timeout"] == PULL_TIMEOUT_SECONDS > 13 * 60, "when a continuous run ends"
    manifest = json.loads((assembly.folder / "manifest.json").read_text())["artifacts"]

    assert "mirrorless-pull-eu-central-1" in manifest["mirrorless-replication-us-east-1"]["dependencies"]
    assert "mirrorless-state-eu-central-1" in manifest["mirrorless-pull-eu-central-1"]["dependencies"]


# Where it runs


def test_with_the_target_it_needs_no_role_to_its_tables_and_the_others_do() -> None:
    flow = planned(SCHEDULED | {"function": {"run.in": "source"}})

    assert flow.pull == flow.state
    assert flow.flow.pull_settings(0).flow.tables_role is None
    assert flow.flow.control_settings("").tables_role == flow.flow.tables_role
    assert not [each for each in table_rights("pull", flow) if "sts:AssumeRole" in each.actions]
    assert not [arn for arn in trusted(flow) if "/pull/" in arn]
    assert len(trusted(flow)) == 4


def test_with_the_source_it_reaches_the_tables_by_their_role_though_the_others_need_none() -> None:
    flow = planned(SCHEDULED | {"schedule": {"run.in": "source"}})

    assert flow.pull != flow.home == flow.state
    role = flow.flow.pull_settings(0).flow.tables_role
    assert role == flow.state.iam_arn(f"role/{flow.flow.resource_name('tables')}")
    assert flow.flow.function_settings().tables_role is None
    assert [each.resources for each in table_rights("pull", flow)] == [(role,)]
    assert trusted(flow) == ["arn:aws:iam::111122223333:role/mirrorless/a_b/pull/*"]
    actions = {action for right in tables_role_rights(flow) for action in right.actions}
    assert "dynamodb:PutItem" in actions, "those of pull"
    assert "dynamodb:GetItem" not in actions, "not those of control"


def test_its_network_and_its_secrets_are_those_of_the_place_where_it_runs() -> None:
    scram = {"authentication": {"type": "scram", "secret": "proof"}, "vpc": VPC}
    flow = planned(SCHEDULED | {"schedule": {"run.in": "source"}}, source=scram)

    granted = {
        arn for right in (*network_rights("pull", flow), *secret_rights("pull", flow)) for arn in right.resources
    }

    assert "arn:aws:ec2:us-east-1:111122223333:subnet/subnet-0a100000000000000" in granted
    assert "arn:aws:secretsmanager:us-east-1:111122223333:secret:proof-??????" in granted
    assert network_of("pull", planned(SCHEDULED, source=scram)) is None, "the target has none"


@pytest.mark.parametrize("home", ["target", "source"])
def test_endpoints_that_only_the_reader_needs_are_made_in_its_stack(home: str) -> None:
    """Those that pollers need too are made beside the mappings: a network takes one of a service."""
    settings = SCHEDULED | {"schedule": {"run.in": "source"}, "function": {"run.in": home}}
    found = deployment(settings, source={"vpc": VPC})
    app = App(context={**CONTEXT, HOLLOW: True})
    stack = FunctionStack(app, "pull", deployment=found, place=found.pulls[0])

    resources = app.synth().get_stack_by_name(stack.stack_name).template["Resources"]

    endpoints = {id_ for id_, each in resources.items() if each["Type"] == "AWS::EC2::VPCEndpoint"}
    (schedule,) = (each for each in resources.values() if each["Type"] == "AWS::Scheduler::Schedule")
    assert bool(endpoints) == (home == "target")
    assert endpoints <= set(schedule["DependsOn"])


def test_a_place_and_an_alarm_topic_that_the_reader_needs_are_asked_for() -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        deployment(SCHEDULED | {"schedule": {"run.in": "source"}}, source={"account": None})
    assert [problem.where for problem in caught.value.problems] == ["clusters.a.account"]

    topics = {"alarms": {"topic.arns": ["arn:aws:sns:eu-west-1:444455556666:on-call"]}}
    with pytest.raises(InvalidConfiguration) as caught:
        deployment(SCHEDULED | {"schedule": {"run.in": "source"}}, deployment=topics)
    assert "no topic is in us-east-1" in caught.value.problems[0].what


@pytest.mark.parametrize(
    ("flow", "expected"),
    [
        ({"topics": ["orders", "logs"], "trigger.overrides": {"logs": "schedule"}}, {"logs"}),
        ({"topics": ["orders", "logs"], "trigger.overrides": {"l.*": "mapping"}}, {"logs"}),
        ({"topics": ["logs.eu", "logs-us"], "trigger.overrides": {"logs.eu": "schedule"}}, {"logs.eu"}),
        ({"topics": ["ev-.*"], "trigger.overrides": {"ev-eu-.*": "schedule", "ev-x": "mapping"}}, {"ev-eu-*", "ev-x"}),
        ({"topics": ["ev-eu-.*"], "trigger.overrides": {"ev-.*": "schedule"}}, {"ev-eu-*"}),
        ({"topics": ["orders"], "trigger.overrides": {"heartbeats": "schedule"}}, {"heartbeats"}),
        ({"topics": ["orders"], "trigger.overrides": {".*beats": "schedule", "orders": "schedule"}}, None),
        ({"topics": ["orders", "ev-.*"], "trigger": "schedule"}, None),
        ({"topics": ["orders", "ev-.*"], "schedule": {"shards": 2}}, None),
    ],
)
def test_only_topics_that_may_be_scheduled_are_read_and_written(
    flow: dict[str, Any], expected: set[str] | None
) -> None:
    deployed = planned(flow)
    every = {"heartbeats", "*.heartbeats", "orders", *({"ev-*"} if "ev-.*" in flow["topics"] else ())}
    wanted = every if expected is None else expected

    read, written = (
        {
            arn.rpartition("/")[2]
            for right in kafka_rights("pull", deployed)
            if f"kafka-cluster:{action}" in right.actions
            for arn in right.resources
            if f":{region}:" in arn
        }
        for action, region in (("ReadData", "us-east-1"), ("WriteData", "eu-west-1"))
    )

    assert set(scheduled_topics(deployed.flow)) == wanted
    assert (read, written) == (wanted, {f"a.{topic}" for topic in wanted})


MSK: dict[str, Any] = {
    "msk.cluster.arn": "arn:aws:kafka:us-east-1:111122223333:cluster/a/0f0c1e1a-0000-4000-8000-000000000000-1"
}


@pytest.mark.parametrize(
    ("part", "flow", "source", "expected"),
    [
        pytest.param(
            "pull",
            {"topics": ["orders", "logs"], "trigger.overrides": {"logs": "schedule"}},
            {},
            {"mirrorless.a.b.logs", "mirrorless-pull"},
            id="the groups of scheduled topics",
        ),
        pytest.param("refresh_topics", SCHEDULED, MSK, {"mirrorless.a.b.*"}, id="topics change back"),
        pytest.param(
            "refresh_topics", {"trigger.overrides": {"orders": "mapping"}}, MSK, {"mirrorless.a.b.*"}, id="or may"
        ),
        pytest.param("refresh_topics", {}, {}, {"mirrorless.a.b.*"}, id="the source gets other addresses"),
        pytest.param("refresh_topics", {}, MSK, set(), id="neither"),
    ],
)
def test_positions_are_committed_only_where_somebody_has_to(
    part: Part, flow: dict[str, Any], source: dict[str, Any], expected: set[str]
) -> None:
    where = ":us-east-1:" if part == "pull" else ":"
    rights = kafka_rights(part, planned(flow, source=source))
    joining = [right for right in rights if "kafka-cluster:AlterGroup" in right.actions]

    assert {arn.rpartition("/")[2] for right in joining for arn in right.resources if where in arn} == expected


# The standby


def test_a_flow_at_home_in_another_region_has_control_once_more_beside_its_tables(assembled: Assembled) -> None:
    assembly = assembled("cross-account")
    (flow,) = assembly.deployment.flows
    stack = assembly.deployment.artifact_id("standby", flow.state)
    (function,) = assembly.resources("AWS::Lambda::Function", stack=stack)
    (schedule,) = assembly.resources("AWS::Scheduler::Schedule", stack=stack)

    assert function.properties["Handler"] == "control.handler"
    assert function.properties["FunctionName"] == "mirrorless-standby-production_vault"
    target = schedule.properties["Target"]
    assert target["Arn"] == f"{flow.function_arn('standby')}:live"
    assert flow.state.region in target["Arn"]
    assert schedule.properties["ScheduleExpression"] == "rate(1 minute)"
    settings = control_settings(json.loads(target["Input"]))
    assert (settings.stands_by, settings.standby_region) == (True, flow.state.region)
    assert settings.function_region == flow.home.region != flow.state.region


def test_home_and_standby_do_the_same_tasks_with_the_same_settings() -> None:
    flow = planned(AT_SOURCE)
    home = flow.schedule_input()
    there = flow.flow.standby_settings()

    assert not home.stands_by
    assert home.standby_region == there.standby_region == "eu-west-1"
    for each in home.__struct_fields__:
        if each not in {"tables_role", "stands_by", "function_name", "mapping_template"}:
            assert getattr(home, each) == getattr(there, each), each
    assert home.tables_role
    assert not there.tables_role, "it is where the tables are"


def test_the_standby_reaches_its_tables_and_its_targets_network_and_nothing_at_home() -> None:
    flow = planned(AT_SOURCE, target={"vpc": VPC})

    granted = {
        arn for right in (*table_rights("standby", flow), *network_rights("standby", flow)) for arn in right.resources
    }

    assert {arn.split(":")[3] for arn in granted if arn.startswith("arn:")} == {"eu-west-1"}
    assert any("table/mirrorless-control-a_b" in arn for arn in granted)
    assert network_of("standby", flow) == flow.flow.target.vpc


NONE = {"function": {"run.in": "source", "standby.enabled": False}}


@pytest.mark.parametrize(("flow", "target"), [({"function": {"run.in": "target"}}, {}), (NONE, {}), ({}, SAME_REGION)])
def test_a_flow_whose_home_is_in_the_targets_region_and_one_that_wants_none_have_no_standby(
    flow: dict[str, Any], target: dict[str, Any]
) -> None:
    found = planned(AT_SOURCE | flow, target=target)

    assert not found.has("standby")
    assert found.schedule_input().standby_region is None


def test_a_secret_of_the_target_that_is_lost_with_the_home_is_refused() -> None:
    arn = "arn:aws:secretsmanager:us-east-1:444455556666:secret:proof-aB3xYz"
    proof = {"authentication": {"type": "scram", "secret": arn}}

    with pytest.raises(InvalidConfiguration, match="lost with its region"):
        planned(AT_SOURCE, target=proof)
    assert not planned(NONE, target=proof).has("standby")
    kept = {"type": "scram", "secret": arn.replace("us-east-1", "eu-west-1")}
    assert planned(AT_SOURCE, target={"authentication": kept}).has("standby")


def test_an_idle_standby_costs_less_than_a_dollar_a_month() -> None:
    assert 0.1 < standby() < 1.0
