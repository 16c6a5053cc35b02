"""Which mappings the lab accepts: the API's own constraints, and the rules between fields."""

import datetime as dt
from typing import Any

import pytest

from lab.esm.behaviour import LabBehaviour
from lab.esm.mapping_api import (
    InvalidParameterValueError,
    PollingOptions,
    ValidationError,
    check_poller_group,
    consumer_group,
    settings_of_create,
    settings_of_update,
)

NOW = dt.datetime(2026, 11, 21, tzinfo=dt.UTC)
ARN = "arn:aws:kafka:us-east-1:123456789012:cluster/src/abcd1234"
SELF_MANAGED = {"Endpoints": {"KAFKA_BOOTSTRAP_SERVERS": ["localhost:9092"]}}
PROVISIONED: dict[str, Any] = {"ProvisionedPollerConfig": {"MinimumPollers": 2, "MaximumPollers": 2}}
UUID = "14e0db71-5d35-4eb5-b481-8945cf9d10c2"
QUEUE = "arn:aws:sqs:us-east-1:123456789012:failed"


def request(**changes: Any) -> dict[str, Any]:
    """A good request, changed; None takes a field away."""
    whole = {
        "FunctionName": "forward",
        "Topics": ["orders"],
        "StartingPosition": "TRIM_HORIZON",
        "SelfManagedEventSource": SELF_MANAGED,
        **changes,
    }
    return {name: value for name, value in whole.items() if value is not None}


def on_failure(destination: str) -> dict[str, Any]:
    return {"DestinationConfig": {"OnFailure": {"Destination": destination}}}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"FunctionName": None}, "FunctionName"),
        ({"Topics": ["x"]}, "Topics.1.member"),
        ({"Topics": [".orders"]}, "Topics.1.member"),
        ({"Topics": ["orders", "payments"]}, "Topics"),
        ({"Topics": []}, "Topics"),
        ({"Topics": ["o" * 250]}, "Topics.1.member"),
        ({"Topics": "orders"}, "Topics"),
        ({"BatchSize": 0}, "BatchSize"),
        ({"BatchSize": 10_001}, "BatchSize"),
        ({"BatchSize": "100"}, "BatchSize"),
        ({"BatchSize": True}, "BatchSize"),
        ({"MaximumBatchingWindowInSeconds": 301}, "MaximumBatchingWindowInSeconds"),
        ({"MaximumBatchingWindowInSeconds": -1}, "MaximumBatchingWindowInSeconds"),
        ({"MaximumBatchingWindowInSeconds": 0.5}, "MaximumBatchingWindowInSeconds"),
        ({"StartingPosition": "EARLIEST"}, "StartingPosition"),
        ({"Enabled": "yes"}, "Enabled"),
        ({**PROVISIONED, "MaximumRetryAttempts": -2}, "MaximumRetryAttempts"),
        ({**PROVISIONED, "MaximumRetryAttempts": 10_001}, "MaximumRetryAttempts"),
        ({**PROVISIONED, "MaximumRecordAgeInSeconds": 604_801}, "MaximumRecordAgeInSeconds"),
        ({**PROVISIONED, "FunctionResponseTypes": ["ReportEverything"]}, "FunctionResponseTypes.1.member"),
        ({"ProvisionedPollerConfig": {"MinimumPollers": 0}}, "ProvisionedPollerConfig.MinimumPollers"),
        ({"ProvisionedPollerConfig": {"MinimumPollers": 201}}, "ProvisionedPollerConfig.MinimumPollers"),
        ({"ProvisionedPollerConfig": {"PollerGroupName": "a b"}}, "ProvisionedPollerConfig.PollerGroupName"),
        ({"SelfManagedKafkaEventSourceConfig": {"ConsumerGroupId": "a#b"}}, "ConsumerGroupId"),
        ({"SelfManagedKafkaEventSourceConfig": {"ConsumerGroupId": "g" * 201}}, "ConsumerGroupId"),
        ({**PROVISIONED, **on_failure("https://example.com")}, "DestinationConfig.OnFailure.Destination"),
        ({"BatchSizes": 3}, "BatchSizes"),
    ],
)
def test_a_field_that_breaks_the_apis_model_is_refused_by_name(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError, match=named) as refusal:
        settings_of_create(request(**changes), now=NOW)

    assert (refusal.value.status, refusal.value.code) == (400, "ValidationException")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"MaximumRetryAttempts": 3}, "maximumRetryAttempts"),
        ({"MaximumRetryAttempts": -1}, "maximumRetryAttempts"),
        ({"MaximumRecordAgeInSeconds": 60}, "maximumRecordAgeInSeconds"),
        ({"BisectBatchOnFunctionError": True}, "bisectBatchOnFunctionError"),
        ({"FunctionResponseTypes": ["ReportBatchItemFailures"]}, "functionResponseTypes"),
        ({"MetricsConfig": {"Metrics": ["EventCount"]}}, "metricsConfig"),
        ({"LoggingConfig": {"SystemLogLevel": "DEBUG"}}, "loggingConfig"),
        (on_failure("kafka://orders-dlt"), "ProvisionedPollerConfig"),
        ({"ParallelizationFactor": 2}, "ParallelizationFactor"),
        ({"TumblingWindowInSeconds": 2}, "TumblingWindowInSeconds"),
        ({"Topics": None}, "Topics"),
        ({"StartingPosition": None}, "StartingPosition"),
        ({"StartingPosition": "AT_TIMESTAMP"}, "StartingPositionTimestamp"),
        ({"StartingPositionTimestamp": 1.0}, "StartingPositionTimestamp"),
        ({"StartingPosition": "AT_TIMESTAMP", "StartingPositionTimestamp": NOW + dt.timedelta(seconds=1)}, "future"),
        ({"SelfManagedEventSource": None}, "EventSourceArn"),
        ({"EventSourceArn": ARN}, "not both"),
        ({"SelfManagedEventSource": {}}, "EventSourceArn"),
        ({"AmazonManagedKafkaEventSourceConfig": {"ConsumerGroupId": "g"}}, "AmazonManagedKafkaEventSourceConfig"),
        ({**PROVISIONED, "MaximumRecordAgeInSeconds": 59}, "MaximumRecordAgeInSeconds"),
        ({**PROVISIONED, **on_failure("kafka://orders")}, "source topic"),
        ({"ProvisionedPollerConfig": {"MaximumPollers": 2_001}}, "MaximumPollers"),
        ({"ProvisionedPollerConfig": {"MinimumPollers": 3, "MaximumPollers": 2}}, "MinimumPollers"),
        ({"FilterCriteria": {"Filters": [{"Pattern": "{}"}]}}, "FilterCriteria"),
        ({"SelfManagedKafkaEventSourceConfig": {"ConsumptionMode": "Queue"}}, "Queue"),
        ({"SelfManagedKafkaEventSourceConfig": {"SchemaRegistryConfig": {"SchemaRegistryURI": "x"}}}, "schema"),
    ],
)
def test_fields_that_do_not_go_together_are_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidParameterValueError, match=named) as refusal:
        settings_of_create(request(**changes), now=NOW)

    assert (refusal.value.status, refusal.value.code) == (400, "InvalidParameterValueException")


def polling(settings: dict[str, Any]) -> PollingOptions:
    return PollingOptions.of(settings, group_id="g", behaviour=LabBehaviour())


def test_the_defaults_are_awss() -> None:
    options = polling(settings_of_create(request(), now=NOW))

    assert (options.batch_size, options.window_s, options.pollers) == (100, 0.5, 1)
    assert options.retries.maximum_retries == -1


def test_a_window_of_zero_is_zero() -> None:
    assert polling(settings_of_create(request(MaximumBatchingWindowInSeconds=0), now=NOW)).window_s == 0.0


def test_endless_retries_with_a_destination_become_ten() -> None:
    """A replicator that configures both gives records up after ten retries, without being configured so."""
    with_destination = settings_of_create(request(**PROVISIONED, **on_failure(QUEUE)), now=NOW)
    without = settings_of_create(request(**PROVISIONED), now=NOW)

    assert polling(with_destination).retries.maximum_retries == 10
    assert polling(without).retries.maximum_retries == -1


def test_timestamps_are_unix_seconds_or_moments() -> None:
    at = dt.datetime(2026, 11, 20, tzinfo=dt.UTC)
    for moment in (at, at.timestamp(), at.isoformat()):
        start = {"StartingPosition": "AT_TIMESTAMP", "StartingPositionTimestamp": moment}
        assert polling(settings_of_create(request(**start), now=NOW)).starting_timestamp_ms == 1795132800000


def test_a_managed_cluster_is_addressed_by_its_arn() -> None:
    config = {"AmazonManagedKafkaEventSourceConfig": {"ConsumerGroupId": "mine"}}

    settings = settings_of_create(request(SelfManagedEventSource=None, EventSourceArn=ARN, **config), now=NOW)

    assert consumer_group(settings) == "mine"


@pytest.mark.parametrize(
    "change",
    [
        {"Topics": ["payments"]},
        {"StartingPosition": "LATEST"},
        {"EventSourceArn": ARN},
        {"SelfManagedEventSource": SELF_MANAGED},
        {"SelfManagedKafkaEventSourceConfig": {"ConsumerGroupId": "another"}},
    ],
)
def test_what_is_set_at_creation_cannot_be_updated(change: dict[str, Any]) -> None:
    current = settings_of_create(request(SelfManagedKafkaEventSourceConfig={"ConsumerGroupId": "mine"}), now=NOW)

    with pytest.raises(InvalidParameterValueError, match="creation only"):
        settings_of_update(current, {"UUID": UUID, **change})


def test_an_update_keeps_what_it_does_not_name() -> None:
    current = settings_of_create(request(BatchSize=7), now=NOW)

    updated = settings_of_update(current, {"UUID": UUID, "MaximumBatchingWindowInSeconds": 3})

    assert (updated["BatchSize"], updated["MaximumBatchingWindowInSeconds"]) == (7, 3)
    assert "MaximumBatchingWindowInSeconds" not in current


def grouped(pollers: int, name: str = "given") -> dict[str, Any]:
    config = {"MaximumPollers": pollers, "PollerGroupName": name}
    return settings_of_create(request(ProvisionedPollerConfig=config), now=NOW)


def test_a_poller_group_takes_a_hundred_mappings_and_two_thousand_pollers() -> None:
    check_poller_group(grouped(1), [grouped(1)] * 99 + [grouped(1, "other")] * 200)
    check_poller_group(grouped(1), [grouped(1_999)])

    with pytest.raises(InvalidParameterValueError, match="given has at most 100 mappings"):
        check_poller_group(grouped(1), [grouped(1)] * 100)
    with pytest.raises(InvalidParameterValueError, match="MaximumPollers of poller group given are at most 2000"):
        check_poller_group(grouped(2), [grouped(1_999)])


def test_mappings_with_an_empty_groups_name_share_nothing() -> None:
    assert "PollerGroupName" not in grouped(1, "")["ProvisionedPollerConfig"]
    check_poller_group(grouped(200, ""), [grouped(200, "")] * 200)


def test_an_empty_poller_configuration_leaves_provisioned_mode() -> None:
    current = settings_of_create(request(**PROVISIONED, MaximumRetryAttempts=3), now=NOW)

    with pytest.raises(InvalidParameterValueError, match="maximumRetryAttempts"):
        settings_of_update(current, {"UUID": UUID, "ProvisionedPollerConfig": {}})
    updated = settings_of_update(current, {"UUID": UUID, "ProvisionedPollerConfig": {}, "MaximumRetryAttempts": -1})

    assert "ProvisionedPollerConfig" not in updated
    assert "MaximumRetryAttempts" not in updated
