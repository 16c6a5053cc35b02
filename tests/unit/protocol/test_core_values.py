"""Small values of the core: the head of a lane, the response to Lambda, and settings."""

from __future__ import annotations

import json

import pytest

from mirrorless.chain.lane import FlowName
from mirrorless.chain.lane_state import NEW_LANE, Stop, StopReason, head_of
from mirrorless.chain.run import Link, Run
from mirrorless.errors import ConfigurationError
from mirrorless.flow.naming import FLOW_VARIABLE
from mirrorless.flow.settings import decode_settings
from mirrorless.protocol.admission import Waiting
from mirrorless.protocol.event import Batch
from mirrorless.protocol.hooks import StageProfile
from mirrorless.protocol.lambda_response import lanes_stopped, lanes_wait, partial_batch_response
from mirrorless.protocol.replicate import BatchOutcome
from mirrorless.records.record import Record
from tests.support.chains import FLOW, reset, run

# Where a lane stands


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        (None, (0, 0, False)),  # wherever its first record is: rivals must meet at one key
        (run(100, 110, (100, 5, 10), generation=2), (2, 110, False)),
        (run(100, 110, (100, 5, 10), state="prepared"), (0, 100, True)),
        (reset(110, 7, generation=2), (3, 7, False)),
    ],
    ids=["without links", "a committed run", "a run in doubt", "a reset"],
)
def test_a_lane_stands_where_its_newest_link_says(link: Link | None, expected: tuple[int, int, bool]) -> None:
    head = head_of(link)

    assert (head.generation, head.position, head.in_doubt) == expected
    assert head.run == (link if isinstance(link, Run) else None)
    assert (head == NEW_LANE) == (link is None)


# The response to Lambda


def stop(upstream_offset: int, reason: StopReason = "refused") -> Stop:
    return Stop(reason=reason, upstream_offset=upstream_offset, detail="too large", at=1)


def batch(**offsets: list[int]) -> Batch:
    records = {
        int(name[1:]): [Record(offset=each, timestamp=1, headers=[]) for each in found]
        for name, found in offsets.items()
    }
    return Batch.of_topic("orders-eu", records)


def outcome(stopped: dict[int, Stop]) -> BatchOutcome:
    return BatchOutcome(runs=(), stopped={("orders-eu", partition): each for partition, each in stopped.items()})


def test_the_stopped_record_and_all_later_ones_of_its_lane_come_again_and_no_others() -> None:
    """Lambda redelivers exactly what is named; a later record left out would overtake the stopped one."""
    answer = partial_batch_response(batch(p0=[1, 2, 4, 7], p1=[5], p12=[8, 9]), outcome({0: stop(3), 12: stop(8)}))

    assert answer == {
        "batchItemFailures": [
            {"itemIdentifier": {"partition": "orders-eu-0", "offset": 4}},
            {"itemIdentifier": {"partition": "orders-eu-0", "offset": 7}},
            {"itemIdentifier": {"partition": "orders-eu-12", "offset": 8}},
            {"itemIdentifier": {"partition": "orders-eu-12", "offset": 9}},
        ]
    }


@pytest.mark.parametrize(
    ("stopped", "said"),
    [
        ({1: stop(5, "contradiction"), 0: stop(1)}, "refused: too large, and 1 other lane"),
        ({0: stop(1)}, "refused: too large ("),
    ],
    ids=["two lanes", "one lane"],
)
def test_without_partial_responses_the_error_names_lane_offset_and_reason(stopped: dict[int, Stop], said: str) -> None:
    error = lanes_stopped(FLOW, outcome(stopped))

    assert str(error).startswith(f"us-east->eu-west orders-eu-0 @ 1: {said}")
    assert not error.retriable


WAITING = Waiting(upstream_offset=5, detail="job run backfill-7 has this lane", hint="wait")


def test_every_record_of_a_lane_that_waits_comes_again() -> None:
    found = BatchOutcome(runs=(), stopped={}, waiting={("orders-eu", 1): WAITING})

    assert partial_batch_response(batch(p0=[1], p1=[0, 4, 5]), found) == {
        "batchItemFailures": [
            {"itemIdentifier": {"partition": "orders-eu-1", "offset": 0}},
            {"itemIdentifier": {"partition": "orders-eu-1", "offset": 4}},
            {"itemIdentifier": {"partition": "orders-eu-1", "offset": 5}},
        ]
    }


@pytest.mark.parametrize(("lanes", "said"), [([3, 1], ", and 1 other"), ([1], " (")])
def test_without_partial_responses_the_error_says_that_waiting_is_all(lanes: list[int], said: str) -> None:
    found = BatchOutcome(runs=(), stopped={}, waiting={("orders-eu", lane): WAITING for lane in lanes})

    error = lanes_wait(FLOW, found)

    assert error.retriable
    assert str(error).startswith(f"us-east->eu-west orders-eu-1 @ 5: job run backfill-7 has this lane{said}")


# Settings

SETTINGS = {
    "flow": "us-east->eu-west",
    "source": {"alias": "us-east", "bootstrap": "b-1.src:9092"},
    "target": {"alias": "eu-west", "bootstrap": "b-1.dst:9092", "region": "eu-west-1"},
}


def test_the_least_settings_are_those_of_an_exactly_once_flow() -> None:
    settings = decode_settings(json.dumps(SETTINGS))

    assert settings.name == FlowName("us-east", "eu-west")
    assert (settings.delivery, settings.target.region) == ("exactly_once", "eu-west-1")
    assert settings.remote_topic("orders") == "us-east.orders"


def test_a_backfill_comes_first_where_the_flow_says_so_and_never_for_heartbeats() -> None:
    settings = decode_settings(json.dumps(SETTINGS | {"start": "backfill"}))

    assert settings.begins_with_history("orders")
    assert not settings.begins_with_history("heartbeats")
    assert not settings.begins_with_history("ap-south.heartbeats")
    assert not decode_settings(json.dumps(SETTINGS)).begins_with_history("orders")


def test_remote_topics_follow_policy_and_separator() -> None:
    underscored = decode_settings(json.dumps(SETTINGS | {"replication_policy_separator": "_"}))
    identity = decode_settings(json.dumps(SETTINGS | {"replication_policy": "identity"}))

    assert underscored.remote_topic("orders") == "us-east_orders"
    assert identity.remote_topic("orders") == "orders"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (None, "not set"),
        ("", "not set"),
        ("{", "truncated"),
        ("[]", "object"),
        ("{}", "flow"),
        (json.dumps(SETTINGS | {"flow": "us-east"}), "'us-east' is not a flow"),
        (json.dumps(SETTINGS | {"flow": "us-east->us-east"}), "to itself"),
        (json.dumps(SETTINGS | {"flow": "US->eu"}), "is not a flow"),
        (json.dumps(SETTINGS | {"flow": 7}), "$.flow"),
        (json.dumps(SETTINGS | {"delivery": "twice"}), "$.delivery"),
        (json.dumps(SETTINGS | {"unheard": 1}), "unheard"),
        (json.dumps(SETTINGS | {"target": {"alias": "eu-west"}}), "$.target"),
        (json.dumps(SETTINGS | {"source": SETTINGS["source"] | {"region": 5}}), "$.source.region"),  # type: ignore[operator]  # a dict, which the table's type does not say
        (json.dumps(SETTINGS | {"source": SETTINGS["source"] | {"authentication": {"type": "kerberos"}}}), "type"),  # type: ignore[operator]  # same
        (json.dumps(SETTINGS | {"transaction_timeout_ms": "10s"}), "$.transaction_timeout_ms"),
        (json.dumps(SETTINGS | {"tables": {"offsets": "x"}}), "offsets"),
    ],
)
def test_bad_settings_are_refused_by_field(text: str | None, named: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        decode_settings(text)

    assert refused.value.where == FLOW_VARIABLE
    assert named in str(refused.value)


# The profile


def test_a_profile_has_the_milliseconds_between_steps_in_the_protocols_order_and_the_processor_time() -> None:
    ticks, cpu = iter([10.0, 10.001, 10.003, 10.006, 10.010]), iter([1.0, 1.002, 1.002, 1.004, 1.005])
    profile = StageProfile(clock=lambda: next(ticks), cpu_clock=lambda: next(cpu))

    for step in ("decoded", "position", "planned", "position"):
        profile(step)

    assert profile.milliseconds() == {"decoded": 1.0, "position": 6.0, "planned": 3.0}
    assert profile.cpu_milliseconds() == {"decoded": 2.0, "position": 1.0, "planned": 2.0}
    assert list(profile.milliseconds()) == ["decoded", "position", "planned"]


def test_each_event_has_a_profile_of_its_own() -> None:
    ticks = iter([10.0, 11.0, 20.0, 20.5])
    profile = StageProfile(clock=lambda: next(ticks))
    profile("decoded")

    profile.begin()
    profile("decoded")

    assert profile.milliseconds() == {"decoded": 500.0}
