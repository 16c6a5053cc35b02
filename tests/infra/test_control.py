"""What starts the scheduled functions, with what rights, and in which order they go."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.constructs.schedules import scheduled_functions
from infra.deployment import plan
from infra.guard.templates import Resource
from mirrorless.config import load
from mirrorless.flow.naming import CONTROL_CALLS_VARIABLE
from mirrorless.flow.settings import control_settings
from mirrorless.scheduled.functions import SCHEDULED
from tests.support.assembly import EXAMPLES, Assembly
from tests.support.changed_examples import written
from tests.support.iam import role_statements
from tests.support.planned_flows import planned

Assembled = Callable[[str], Assembly]


def of_type(assembly: Assembly, type_: str) -> list[Resource]:
    return list(assembly.resources(type_, stack="mirrorless-control-"))


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

    assert len(schedules) == len(SCHEDULED) * len(assembly.deployment.flows)
    for flow in assembly.deployment.flows:
        for each in SCHEDULED:
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


def test_secrets_of_found_topics_are_read_by_arn(assembled: Assembled) -> None:
    """Lambda takes no secret's name."""
    assembly = assembled("aggregation")

    access = [
        each["URI"]
        for scheduled in of_type(assembly, "AWS::Scheduler::Schedule")
        for each in json.loads(scheduled.properties["Target"]["Input"])["mapping_template"][
            "SourceAccessConfigurations"
        ]
    ]
    assert set(access) == {"arn:aws:secretsmanager:us-east-2:111122223333:secret:AmazonMSK_mirrorless"}


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
    (stack,) = {each.stack for each in of_type(assembly, "AWS::Lambda::Function") if "eu-west-3" in each.stack}
    resources = assembly.templates[stack]["Resources"]
    account, region = "111122223333", "eu-west-3"
    (role_id,) = {
        next(named(each["Properties"]["Target"]["RoleArn"]))
        for each in resources.values()
        if each["Type"] == "AWS::Scheduler::Schedule"
    }

    assert resources[role_id]["Properties"]["AssumeRolePolicyDocument"]["Statement"] == [
        {
            "Action": "sts:AssumeRole",
            "Effect": "Allow",
            "Principal": {"Service": "scheduler.amazonaws.com"},
            "Condition": {
                "StringEquals": {
                    "aws:SourceAccount": account,
                    "aws:SourceArn": f"arn:aws:scheduler:{region}:{account}:schedule-group/mirrorless",
                }
            },
        }
    ]
    assert role_statements(assembly, Resource(stack, role_id, resources[role_id])) == [
        {
            "Action": "lambda:InvokeFunction",
            "Effect": "Allow",
            "Resource": [
                f"arn:aws:lambda:{region}:{account}:function:mirrorless-control-paris_hub:live",
                f"arn:aws:lambda:{region}:{account}:function:mirrorless-refresh-topics-paris_hub:live",
            ],
        }
    ]


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


def test_flows_at_one_home_share_the_control_calls_of_its_account(assembled: Assembled) -> None:
    """Lambda answers fifteen a second to all of an account and region together."""
    assembly = assembled("hub-and-spoke")
    shares = {flow.name: flow.schedule_input().control_calls_per_second for flow in assembly.deployment.flows}
    removals = {
        each.properties["FunctionName"]: each.properties["Environment"]["Variables"].get(CONTROL_CALLS_VARIABLE)
        for each in assembly.resources("AWS::Lambda::Function")
        if "remove-mappings" in each.properties["FunctionName"]
    }

    assert shares == {"paris->hub": 10, "dublin->hub": 10, "hub->paris": 5, "hub->dublin": 5}
    assert removals["mirrorless-remove-mappings-paris_hub"] is None
    assert removals["mirrorless-remove-mappings-hub_paris"] == "5"


def test_deployments_of_one_account_divide_its_control_calls_by_their_files(tmp_path: Path) -> None:
    config = written(tmp_path, "hub-and-spoke", ("clusters:", "deployment: {control.calls.per.second: 3}\nclusters:"))

    shares = {flow.name: flow.schedule_input().control_calls_per_second for flow in plan(load(config)).flows}

    assert shares == {"paris->hub": 3, "dublin->hub": 3, "hub->paris": 1.5, "hub->dublin": 1.5}


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


def test_cloudformation_waits_longer_than_the_removal_lasts_and_not_for_an_hour(assembled: Assembled) -> None:
    (found,) = of_type(assembled("active-passive"), "Custom::MirrorlessFoundMappings")

    assert 2 * 600 < int(found.properties["ServiceTimeout"]) < 3600


def test_the_removal_runs_where_the_address_of_its_answer_can_be_reached(assembled: Assembled) -> None:
    functions = of_type(assembled("active-passive"), "AWS::Lambda::Function")

    assert {each.properties["FunctionName"].split("-")[1]: "VpcConfig" in each.properties for each in functions} == {
        "control": True,
        "refresh": True,
        "remove": False,
    }
