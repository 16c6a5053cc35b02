"""What reads scheduled topics: one schedule for each shard, one function, and rights to exactly these topics."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from aws_cdk import App

from infra.constructs.endpoints import vpc_endpoints
from infra.constructs.schedules import pull_starts
from infra.deployment import FlowDeployment
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
from infra.stacks.function_stack import PullStack
from infra.stacks.state import trusted
from mirrorless.config.problems import InvalidConfiguration
from mirrorless.flow.settings import pull_settings
from mirrorless.scheduled.functions import PULL_TIMEOUT_SECONDS
from tests.support.assembly import CONTEXT, Assembly
from tests.support.planned_flows import deployment, planned

Assembled = Callable[[str], Assembly]


def of_type(assembly: Assembly, type_: str) -> list[Resource]:
    return list(assembly.resources(type_, stack="mirrorless-pull-"))


SCHEDULED: dict[str, Any] = {"trigger": "schedule"}


# Schedules


def test_each_shard_has_a_schedule_whose_input_is_its_settings(assembled: Assembled) -> None:
    assembly = assembled("long-tail")
    (flow,) = assembly.deployment.flows
    schedules = {
        str(each.properties["Name"]): each.properties for each in of_type(assembly, "AWS::Scheduler::Schedule")
    }

    assert schedules.keys() == {"mirrorless-pull-0-shop_archive", "mirrorless-pull-1-shop_archive"}
    for shard, properties in enumerate(schedules.values()):
        target = properties["Target"]
        settings = pull_settings(json.loads(target["Input"]))
        assert properties["ScheduleExpression"] == "rate(5 minutes)"
        assert target["Arn"] == "arn:aws:lambda:eu-central-1:111122223333:function:mirrorless-pull-shop_archive:live"
        assert target["RetryPolicy"] == {"MaximumRetryAttempts": 0, "MaximumEventAgeInSeconds": 60}
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
    (group,) = of_type(assembly, "AWS::Scheduler::ScheduleGroup")
    conditions = [
        json.dumps(statement["Condition"])
        for role in of_type(assembly, "AWS::IAM::Role")
        for statement in role.properties["AssumeRolePolicyDocument"]["Statement"]
        if "Condition" in statement
    ]

    assert group.properties["Name"] == "mirrorless-pull"
    assert ["schedule-group/mirrorless-pull" in each for each in conditions] == [True]


# The function


def test_the_function_has_the_memory_of_the_flow_and_the_time_of_a_hand_over(assembled: Assembled) -> None:
    (function,) = of_type(assembled("long-tail"), "AWS::Lambda::Function")
    properties = function.properties

    assert (properties["MemorySize"], properties["Timeout"]) == (512, PULL_TIMEOUT_SECONDS)
    assert PULL_TIMEOUT_SECONDS > 13 * 60, "a continuous run ends after 13 minutes"
    assert properties["Handler"] == "pull.handler"
    assert properties["VpcConfig"]["SubnetIds"] == ["subnet-0c300000000000000", "subnet-0c400000000000000"]


def test_flows_without_scheduled_topics_have_none_of_it(assembled: Assembled) -> None:
    assembly = assembled("active-passive")

    assert assembly.deployment.pulls == ()
    assert not [name for name in assembly.templates if "-pull-" in name]


def test_the_template_maps_only_topics_that_no_entry_is_about(assembled: Assembled) -> None:
    mapped = [each.properties["Topics"] for each in assembled("long-tail").resources("AWS::Lambda::EventSourceMapping")]

    assert sorted(mapped) == [["orders"], ["payments"]]


def test_the_reader_is_there_before_the_mapping_of_a_scheduled_topic_goes(assembled: Assembled) -> None:
    assembly = assembled("long-tail")
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


VPC = {
    "id": "vpc-0a100000000000000",
    "subnets": ["subnet-0a100000000000000"],
    "security.groups": ["sg-0a100000000000000"],
    "endpoints": True,
}


def test_endpoints_of_a_network_are_made_once_whoever_is_in_it() -> None:
    both = planned(
        SCHEDULED | {"schedule": {"run.in": "source"}, "function": {"run.in": "source"}}, source={"vpc": VPC}
    )
    on_demand = {"schedule": {"run.in": "source"}, "mapping": {"mode": "on-demand"}}
    alone = planned(SCHEDULED | on_demand, source={"vpc": VPC})

    (shared,) = vpc_endpoints([both], [both])
    (own,) = vpc_endpoints([], [alone])

    assert (shared.made_by, shared.services) == ("home", ("lambda", "sts"))
    assert (own.made_by, own.services, own.accounts) == ("pull", ("sts",), ("111122223333", "444455556666"))


@pytest.mark.parametrize("home", ["target", "source"])
def test_endpoints_that_only_the_reader_needs_are_made_in_its_stack(home: str) -> None:
    """Those that pollers need too are made beside the mappings: a network takes one of a service."""
    settings = SCHEDULED | {"schedule": {"run.in": "source"}, "function": {"run.in": home}}
    found = deployment(settings, source={"vpc": VPC})
    app = App(context={**CONTEXT, "mirrorless:hollow": True})
    stack = PullStack(app, deployment=found, place=found.pulls[0])

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


# Rights


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


def joined(part: Part, flow: FlowDeployment, where: str) -> set[str]:
    """The groups that a part may join and change. Args: where: in its ARNs."""
    granted = [right for right in kafka_rights(part, flow) if "kafka-cluster:AlterGroup" in right.actions]
    return {arn.rpartition("/")[2] for right in granted for arn in right.resources if where in arn}


def test_positions_are_committed_only_for_the_groups_of_these_topics() -> None:
    deployed = planned({"topics": ["orders", "logs"], "trigger.overrides": {"logs": "schedule"}})

    assert joined("pull", deployed, ":us-east-1:") == {"mirrorless.a.b.logs", "mirrorless-pull"}


MSK: dict[str, Any] = {
    "msk.cluster.arn": "arn:aws:kafka:us-east-1:111122223333:cluster/a/0f0c1e1a-0000-4000-8000-000000000000-1"
}


@pytest.mark.parametrize(
    ("flow", "source", "expected"),
    [
        (SCHEDULED, MSK, {"mirrorless.a.b.*"}),
        ({"trigger.overrides": {"orders": "mapping"}}, MSK, {"mirrorless.a.b.*"}),
        ({}, {}, {"mirrorless.a.b.*"}),
        ({}, MSK, set()),
    ],
)
def test_the_refresh_may_set_groups_where_topics_change_back_or_the_source_gets_other_addresses(
    flow: dict[str, Any], source: dict[str, Any], expected: set[str]
) -> None:
    assert joined("refresh_topics", planned(flow, source=source), ":") == expected
