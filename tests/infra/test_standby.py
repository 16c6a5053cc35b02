"""The standby of flows at home in another region: its place, its input, its rights, its alarms, its cost."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from infra.constructs.endpoints import vpc_endpoints
from infra.iam.statements import network_of, network_rights, table_rights
from mirrorless.config.problems import InvalidConfiguration
from mirrorless.cost.bill import standby
from mirrorless.flow.settings import control_settings
from tests.support.assembly import Assembly
from tests.support.planned_flows import planned

Assembled = Callable[[str], Assembly]
VPC = {"id": "vpc-0a", "subnets": ["subnet-0a"], "security.groups": ["sg-0a"], "endpoints": True}


AT_SOURCE: dict[str, Any] = {"function": {"run.in": "source"}}


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


@pytest.mark.parametrize(
    ("flow", "target"),
    [
        ({"function": {"run.in": "target"}}, {}),
        ({"function": {"run.in": "source", "standby.enabled": False}}, {}),
        ({}, {"region": "us-east-1"}),
    ],
)
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
    assert not planned({"function": {"run.in": "source", "standby.enabled": False}}, target=proof).has("standby")
    kept = {"type": "scram", "secret": arn.replace("us-east-1", "eu-west-1")}
    assert planned(AT_SOURCE, target={"authentication": kept}).has("standby")


def test_endpoints_of_a_network_that_only_a_standby_is_in_are_made_beside_it() -> None:
    flow = planned(AT_SOURCE, target={"vpc": VPC})
    back = planned({"function": {"run.in": "target"}}, target={"vpc": VPC})

    (alone,) = vpc_endpoints([], [], [flow])
    (shared,) = vpc_endpoints([back], [], [flow])

    assert (alone.made_by, alone.services) == ("standby", ())
    assert shared.made_by == "home"


def test_an_idle_standby_costs_less_than_a_dollar_a_month() -> None:
    assert 0.1 < standby() < 1.0


def test_alarms_of_a_standby_ring_in_its_own_region(assembled: Assembled) -> None:
    assembly = assembled("active-passive")
    (flow,) = assembly.deployment.flows
    names = {
        str(each.properties["AlarmName"]).removeprefix(f"mirrorless-{flow.id}-"): each.properties["TreatMissingData"]
        for each in assembly.resources(
            "AWS::CloudWatch::Alarm", stack=assembly.deployment.artifact_id("standby", flow.state)
        )
    }

    assert names == {"home-silent": "notBreaching", "standby-fails": "notBreaching", "standby-silent": "breaching"}
