"""The plan of mappings: created, updated, deleted, left alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import botocore.session
import msgspec
import pytest

from lab.esm.api_model import violations
from lab.esm.mapping_api import settings_of_create, settings_of_update
from mirrorless.flow.settings import FlowSettings
from mirrorless.topics.mapping_plan import (
    CONFIGS,
    Request,
    drifted,
    mapping_request,
    mapping_requests,
    not_polling,
    plan_mappings,
)
from tests.support.chains import FLOW
from tests.support.flows import make_flow

ON_DEMAND: Request = {
    "Enabled": True,
    "BatchSize": 100,
    "SelfManagedEventSource": {"Endpoints": {"KAFKA_BOOTSTRAP_SERVERS": ["b1:9092", "b2:9092"]}},
    "SelfManagedKafkaEventSourceConfig": {},
}
PROVISIONED: Request = ON_DEMAND | {
    "ProvisionedPollerConfig": {"MinimumPollers": 1, "MaximumPollers": 2},
    "MaximumRetryAttempts": -1,
    "FunctionResponseTypes": ["ReportBatchItemFailures"],
    "MetricsConfig": {"Metrics": ["EventCount"]},
    "LoggingConfig": {"SystemLogLevel": "INFO"},
}


def settings(template: Request = ON_DEMAND) -> FlowSettings:
    flow = make_flow(FLOW, source="b1:9092", target="b:9092")
    return msgspec.structs.replace(flow, mapping_template=template, function_name="forward")


def desired(*topics: str, template: Request = ON_DEMAND) -> dict[str, Request]:
    return {topic: mapping_request(settings(template), topic) for topic in topics}


def actual(topic: str, template: Request = ON_DEMAND, **changes: Any) -> Request:
    """A mapping as the API describes one of ours."""
    request = mapping_request(settings(template), topic)
    kept = {name: value for name, value in request.items() if name not in {"Enabled", "Tags"}}
    return {"UUID": f"uuid-{topic}", "State": "Enabled", **kept, **changes}


@pytest.mark.parametrize("template", [ON_DEMAND, PROVISIONED], ids=["on demand", "provisioned"])
def test_a_request_is_what_the_api_takes(template: Request) -> None:
    request = {"FunctionName": "forward", **mapping_request(settings(template), "orders")}

    assert violations("CreateEventSourceMapping", request) == []


def test_a_request_names_the_topic_its_group_and_whose_it_is() -> None:
    request = mapping_request(settings(), "orders")

    assert request["Topics"] == ["orders"]
    assert request["StartingPosition"] == "TRIM_HORIZON"
    assert request["SelfManagedKafkaEventSourceConfig"] == {"ConsumerGroupId": "mirrorless.us-east.eu-west.orders"}
    assert request["Tags"] == {"mirrorless:flow": "us-east.eu-west", "mirrorless:owner": "refresh_topics"}
    assert ON_DEMAND["SelfManagedKafkaEventSourceConfig"] == {}


def test_missing_mappings_are_created_and_superfluous_ones_deleted() -> None:
    plan = plan_mappings([actual("old"), actual("same")], desired("same", "new"), flow=FLOW)

    assert (list(plan.create), plan.update, plan.delete) == (["new"], {}, {"old": "uuid-old"})


def test_other_flows_mappings_and_other_kinds_are_ignored() -> None:
    others = [
        actual("old", SelfManagedKafkaEventSourceConfig={"ConsumerGroupId": "mirrorless.us-east.eu-west2.old"}),
        actual("old", SelfManagedKafkaEventSourceConfig={"ConsumerGroupId": "of-somebody-else"}),
        {"UUID": "queue", "State": "Enabled", "EventSourceArn": "arn:aws:sqs:eu-west-1:1:q"},
    ]

    assert plan_mappings(others, {}, flow=FLOW).delete == {}


def test_topics_to_keep_are_neither_created_nor_deleted() -> None:
    plan = plan_mappings([actual("literal")], desired("blocked"), flow=FLOW, keep={"literal", "blocked"})

    assert (plan.create, plan.delete) == ({}, {})


@pytest.mark.parametrize("state", ["Creating", "Updating", "Deleting", "Enabling", "Disabling"])
def test_what_is_under_way_is_left_to_the_next_round(state: str) -> None:
    plan = plan_mappings([actual("a", State=state, BatchSize=7), actual("gone", State=state)], desired("a"), flow=FLOW)

    assert (plan.create, plan.update, plan.delete, plan.busy) == ({}, {}, {}, ("a", "gone"))


def test_a_disabled_mapping_stays_disabled_and_is_reported() -> None:
    """It is how an operator pauses a topic."""
    plan = plan_mappings([actual("a", State="Disabled")], desired("a"), flow=FLOW)

    assert (plan.update, plan.disabled) == ({}, ("a",))


def test_a_mapping_with_other_addresses_of_the_source_is_moved() -> None:
    """No update changes these."""
    moved = actual("a", SelfManagedEventSource={"Endpoints": {"KAFKA_BOOTSTRAP_SERVERS": ["elsewhere:9092"]}})
    reordered = actual("b", SelfManagedEventSource={"Endpoints": {"KAFKA_BOOTSTRAP_SERVERS": ["b2:9092", "b1:9092"]}})

    plan = plan_mappings([moved, reordered], desired("a", "b"), flow=FLOW)

    assert (list(plan.create), plan.update, plan.delete, plan.move) == ([], {}, {}, {"a": "uuid-a"})
    assert plan.polling == {"b"}
    stuck = actual("b", LastProcessingResult="PROBLEM: Connection error")
    assert plan_mappings([stuck], desired("b"), flow=FLOW).polling == frozenset()


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"State": "Disabled"}, "Disabled"),
        ({"State": "Disabled", "StateTransitionReason": "ESM_CONFIG_NOT_VALID"}, "Disabled: ESM_CONFIG_NOT_VALID"),
        ({"State": "Creating"}, "Creating"),
        ({"LastProcessingResult": "PROBLEM: Connection error"}, "PROBLEM: Connection error"),
        ({"LastProcessingResult": "PROBLEM: Function call failed"}, None),
        ({"LastProcessingResult": "PROBLEM: Function returned batch item failures"}, None),
        ({"LastProcessingResult": "OK"}, None),
        ({}, None),
    ],
)
def test_a_mapping_polls_that_is_enabled_and_has_no_problem_of_its_own(facts: Request, why: str | None) -> None:
    assert not_polling([actual("a", **facts)], ["a"], FLOW).get("a") == why
    assert not_polling([], ["a"], FLOW) == {"a": "it has no mapping"}


@pytest.mark.parametrize("template", [ON_DEMAND, PROVISIONED], ids=["on demand", "provisioned"])
def test_a_mapping_as_it_should_be_is_left_alone(template: Request) -> None:
    as_told = {"FunctionResponseTypes": [], "DestinationConfig": {"OnFailure": {}}, "MaximumBatchingWindowInSeconds": 0}
    mapping = as_told | actual("a", template)

    assert drifted(mapping, desired("a", template=template)["a"]) == {}


GROUP = "SelfManagedKafkaEventSourceConfig"
REGISTRY = {"SchemaRegistryURI": "https://r.example.com", "EventRecordFormat": "SOURCE"}
OF_KMS = "arn:aws:kms:eu-west-1:111122223333:key/5e2f0c6d-8b7a-4931-9c4d-1f0a2b3c4d5e"

DRIFTED: Mapping[str, Request] = {
    "BatchSize": {"BatchSize": 7},
    "MaximumBatchingWindowInSeconds": {"MaximumBatchingWindowInSeconds": 300},
    "SourceAccessConfigurations": {"SourceAccessConfigurations": [{"Type": "BASIC_AUTH", "URI": "x"}]},
    "ProvisionedPollerConfig": {"ProvisionedPollerConfig": {"MinimumPollers": 1, "MaximumPollers": 200}},
    "MaximumRetryAttempts": {"MaximumRetryAttempts": 3},
    "MaximumRecordAgeInSeconds": {"MaximumRecordAgeInSeconds": 60},
    "BisectBatchOnFunctionError": {"BisectBatchOnFunctionError": True},
    "FunctionResponseTypes": {"FunctionResponseTypes": []},
    "DestinationConfig": {"DestinationConfig": {"OnFailure": {"Destination": "arn:aws:sqs:a:1:q"}}},
    "FilterCriteria": {"FilterCriteria": {"Filters": [{"Pattern": "{}"}]}},
    "KMSKeyArn": {"KMSKeyArn": OF_KMS},
    "MetricsConfig": {"MetricsConfig": {"Metrics": ["ErrorCount"]}},
    "LoggingConfig": {"LoggingConfig": {"SystemLogLevel": "DEBUG"}},
    "SchemaRegistryConfig": {GROUP: {"ConsumerGroupId": "g", "SchemaRegistryConfig": REGISTRY}},
}
"""What a hand has set of a provisioned mapping, by the field that is brought back."""

LEFT_ALONE: Mapping[str, str] = {
    **dict.fromkeys(("UUID", "EventSourceMappingArn", "LastModified"), "Lambda's own"),
    **dict.fromkeys(("State", "StateTransitionReason", "LastProcessingResult"), "a pause is the operator's; reported"),
    **dict.fromkeys(
        ("StartingPosition", "StartingPositionTimestamp", "Topics"), "fixed at creation; the group decides"
    ),
    "ConsumerGroupId": "fixed at creation, and by it a mapping is the flow's",
    "ConsumptionMode": "fixed at creation",
    **dict.fromkeys(("EventSourceArn", "SelfManagedEventSource"), "fixed at creation: the mapping is moved"),
    "FunctionArn": "one that calls something else is not listed: its topic has no mapping, which is reported",
    "FilterCriteriaError": "of a filter that cannot be shown: with it the filter goes",
    **dict.fromkeys(("ParallelizationFactor", "TumblingWindowInSeconds"), "of other streams"),
    **dict.fromkeys(("Queues", "ScalingConfig", "DocumentDBEventSourceConfig"), "of other sources"),
}
"""The rest of what Lambda tells of a mapping, and why it is not brought back."""


def test_every_field_of_a_mapping_is_brought_back_or_left_alone_for_a_reason() -> None:
    """By the API's model: a field that AWS adds is to be judged, since each may lose records or change them."""
    model = botocore.session.get_session().get_service_model("lambda")
    shapes = ("EventSourceMappingConfiguration", *CONFIGS)
    described = {name for shape in shapes for name in model.shape_for(shape).members} - {*CONFIGS}

    assert described == DRIFTED.keys() | LEFT_ALONE.keys()
    assert not DRIFTED.keys() & LEFT_ALONE.keys()


@pytest.mark.parametrize("field", DRIFTED)
def test_a_field_that_drifted_is_brought_back(field: str) -> None:
    template = PROVISIONED | {"MaximumBatchingWindowInSeconds": 1}

    update = drifted(actual("a", template, **DRIFTED[field]), desired("a", template=template)["a"])

    beside = {"SchemaRegistryConfig": {GROUP}, "KMSKeyArn": {"KMSKeyArn", "FilterCriteria"}}
    assert set(update) == beside.get(field, {field})
    assert violations("UpdateEventSourceMapping", {"UUID": "u" * 36, **update}) == []
    mended = actual("a", template, **DRIFTED[field]) | update
    assert drifted(mended, desired("a", template=template)["a"]) == {}


def test_a_schema_registry_goes_from_mappings_of_both_kinds() -> None:
    """With one Lambda takes the ids of schemas out of the records that it delivers."""
    for config in CONFIGS:
        given = actual("a") | {config: {"ConsumerGroupId": "g", "SchemaRegistryConfig": REGISTRY}}

        assert drifted(given, desired("a")["a"]) == {config: {"ConsumerGroupId": "g", "SchemaRegistryConfig": {}}}


def test_a_filter_that_lambda_does_not_show_goes_too() -> None:
    unread = actual("a", FilterCriteriaError={"ErrorCode": "x", "Message": "kms:Decrypt"})

    assert drifted(unread, desired("a")["a"]) == {"FilterCriteria": {"Filters": []}}


def test_of_the_templates_mappings_only_what_no_flow_sets_is_taken_back() -> None:
    """The rest may be newer than what the schedule knows: a deployment changes mappings first."""
    changes = {"BatchSize": 7, **DRIFTED["FilterCriteria"], "MetricsConfig": {"Metrics": ["ErrorCount"]}}
    there = [actual("named", PROVISIONED, **changes), actual("busy", State="Updating", **DRIFTED["FilterCriteria"])]

    plan = plan_mappings(there, {}, flow=FLOW, keep={"named", "busy"}, of_template={"named", "busy", "gone"})

    assert plan.update == {"named": ("uuid-named", {"FilterCriteria": {"Filters": []}})}
    assert not {*plan.good, *plan.delete}
    as_it_was = plan_mappings([actual("named")], {}, flow=FLOW, keep={"named"}, of_template={"named"})
    assert as_it_was.update == {}
    assert as_it_was.good == {"named"}


def test_a_mapping_is_brought_into_provisioned_mode_and_out_of_it() -> None:
    into = drifted(actual("a"), desired("a", template=PROVISIONED)["a"])
    out = drifted(actual("a", PROVISIONED), desired("a")["a"])

    assert into["ProvisionedPollerConfig"] == {"MinimumPollers": 1, "MaximumPollers": 2}
    assert into["FunctionResponseTypes"] == ["ReportBatchItemFailures"]
    assert out["ProvisionedPollerConfig"] == {}
    provisioned = settings_of_create({"FunctionName": "f"} | desired("aa", template=PROVISIONED)["aa"])
    assert "ProvisionedPollerConfig" not in settings_of_update(provisioned, {"UUID": "u" * 36, **out})


def test_what_the_api_adds_to_the_pollers_is_no_drift() -> None:
    pollers = {"MinimumPollers": 1, "MaximumPollers": 2, "PollerGroupName": "given"}

    assert (
        drifted(actual("a", PROVISIONED, ProvisionedPollerConfig=pollers), desired("a", template=PROVISIONED)["a"])
        == {}
    )


def pollers(**changes: Any) -> Request:
    return PROVISIONED | {"ProvisionedPollerConfig": PROVISIONED["ProvisionedPollerConfig"] | changes}


SHARED = pollers(PollerGroupName="mirrorless-pollers-us-east_eu-west")


def listed(requests: dict[str, Request]) -> list[Request]:
    """Mappings as the API lists them after they were created so."""
    shown = {topic: settings_of_create({"FunctionName": "f"} | each) for topic, each in requests.items()}
    return [{"UUID": f"uuid-{topic}", "State": "Enabled"} | each for topic, each in shown.items()]


def test_found_mappings_that_are_in_their_groups_are_left_alone() -> None:
    topics = [f"topic-{number}" for number in range(250)]
    there = listed(mapping_requests(settings(SHARED), topics, []))

    plan = plan_mappings(there, mapping_requests(settings(SHARED), [*topics, "new"], there), flow=FLOW)

    assert (list(plan.create), plan.update, plan.delete) == (["new"], {}, {})
    groups = Counter(each["ProvisionedPollerConfig"]["PollerGroupName"] for each in there)
    assert sorted(groups.values()) == [50, 100, 100]


def test_found_mappings_without_a_group_are_brought_into_one_by_one_update_each() -> None:
    there = listed(mapping_requests(settings(PROVISIONED), ["aa", "bb"], []))

    plan = plan_mappings(there, mapping_requests(settings(SHARED), ["aa", "bb"], there), flow=FLOW)

    group = {"PollerGroupName": "mirrorless-pollers-us-east_eu-west_found1"}
    wanted = {"ProvisionedPollerConfig": PROVISIONED["ProvisionedPollerConfig"] | group}
    assert plan.update == {"aa": ("uuid-aa", wanted), "bb": ("uuid-bb", wanted)}


def test_mappings_that_leave_a_group_are_updated_before_those_that_stay_in_it() -> None:
    """Those that stay may have more pollers then, for which the group has room only without the others."""
    topics = [f"topic-{number}" for number in range(50)]
    there = listed(mapping_requests(settings(SHARED), topics, []))
    more = settings(pollers(**SHARED["ProvisionedPollerConfig"] | {"MaximumPollers": 50}))

    plan = plan_mappings(there, mapping_requests(more, topics, there), flow=FLOW)

    groups = [fields["ProvisionedPollerConfig"]["PollerGroupName"][-6:] for _, fields in plan.update.values()]
    assert groups == ["found2"] * 10 + ["found1"] * 40


@pytest.mark.parametrize("name", ["given", ""])
def test_a_group_that_the_configuration_names_and_none_are_for_every_found_mapping(name: str) -> None:
    template = settings(pollers(PollerGroupName=name))

    requests = mapping_requests(template, ["aa", "bb"], [])

    assert {each["ProvisionedPollerConfig"]["PollerGroupName"] for each in requests.values()} == {name}
    assert plan_mappings(listed(requests), requests, flow=FLOW).update == {}
    leaving = plan_mappings(listed(mapping_requests(settings(SHARED), ["aa"], [])), requests, flow=FLOW)
    assert leaving.update["aa"][1]["ProvisionedPollerConfig"]["PollerGroupName"] == name
