"""Rules on the way of a batch: what they leave out, what they do not fit, and what an earlier one has done."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from mirrorless.chain.lane_state import RUNNING, Head, LaneState, LeftOut, Stop
from mirrorless.chain.run import Run
from mirrorless.errors import ConfigurationError
from mirrorless.protocol.flow_rules import FlowRules, document_of
from mirrorless.protocol.plan import LanePlan, plan_lane
from mirrorless.protocol.refusal_causes import TRANSFORM_FAILED
from mirrorless.protocol.replay_check import CopyOfRecord, contradiction
from mirrorless.protocol.settle import Attempt, settle_lane
from mirrorless.records.record import Record
from mirrorless.records.record_batch import RecordBatch
from mirrorless.transforms.avro_fields import SchemaId
from mirrorless.transforms.rules import KeyRing, KeySettings, Mask, Rule
from tests.support.batches import batch_of
from tests.support.chains import FLOW, LANE
from tests.support.documents import MemoryDocuments
from tests.support.flows import make_flow

T = 1_763_686_800_000
MATERIAL = {version: bytes([version]) * 32 for version in (1, 2)}
MASKED = Rule(topics=("orders",), keep="value.country == 'DE'", fields={"mail": Mask(hmac="pii")})


def read_keys(settings: Mapping[str, KeySettings]) -> dict[str, KeyRing]:
    return {name: KeyRing(each.version, {each.version: MATERIAL[each.version]}) for name, each in settings.items()}


def rules_of(*rules: Rule, documents: MemoryDocuments | None = None, version: int = 1, **more: Any) -> FlowRules:
    keys = {"pii": KeySettings(version=version)}
    flow = make_flow(FLOW, transforms=rules, **{"keys": keys} | more)
    return FlowRules(settings=flow, documents=documents or MemoryDocuments(), read_keys=read_keys)


def record(offset: int, country: str = "DE") -> Record:
    value = b'{"country":"%s","mail":"%d@example.com"}' % (country.encode(), offset)
    return Record(offset=offset, timestamp=T + offset, headers=[], key=None, value=value)


def broken(offset: int) -> Record:
    return replace(record(offset), value=b"secret, and no JSON")


def plan(
    batch: Sequence[Record] | Sequence[RecordBatch], rules: FlowRules, *, state: LaneState = RUNNING, **more: Any
) -> LanePlan:
    head = Head(generation=0, position=100)
    return plan_lane(LANE, head, state, batch, now=T, transform=rules.of("orders"), **more)


def settled(found: LanePlan) -> Run:
    attempt = Attempt(writer="w", attempt="a", request="r", now=T)
    return settle_lane(found, [500 + i for i in range(len(found.write))], attempt).committed()


def offsets(found: LanePlan) -> list[int]:
    return [each.offset for each in found.write]


BATCH = [record(100), record(101, "US"), record(102, "US"), record(103), record(104, "US")]


def test_what_a_rule_leaves_out_is_passed_and_named_in_the_run_and_the_rest_is_masked() -> None:
    rules = rules_of(MASKED)

    run = settled(found := plan(BATCH, rules))

    assert (offsets(found), found.next) == ([100, 103], 105)
    assert (run.filtered, run.rule, run.next) == (((101, 103), (104, 105)), rules.of("orders").id, 105)  # type: ignore[union-attr]  # it has one
    assert all(b"@" not in (each.value or b"") for each in found.write if isinstance(each, Record))


def test_a_batch_of_which_a_rule_leaves_out_everything_moves_the_lane() -> None:
    found = plan(BATCH[1:3], rules_of(MASKED))

    assert (found.moves, settled(found).spans, settled(found).begins) == (True, (), 101)


DROPS = replace(MASKED, on_error="drop")
ORDERED = LaneState(quarantine=(LeftOut(first=103, next=104, cause=TRANSFORM_FAILED, why="as ordered"),))
OTHERWISE_ORDERED = LaneState(quarantine=(LeftOut(first=103, next=104, cause="MSG_SIZE_TOO_LARGE"),))


@pytest.mark.parametrize(
    ("rule", "state", "written", "left_out", "stops_at", "why"),
    [
        (MASKED, RUNNING, [100], (), 103, None),
        (MASKED, OTHERWISE_ORDERED, [100], (), 103, None),
        (MASKED, ORDERED, [100, 105], (103,), None, "as ordered"),
        (DROPS, RUNNING, [100, 105], (103,), None, "on.error: drop, "),
    ],
)
def test_a_record_to_which_a_rule_cannot_be_applied_stops_the_lane_or_goes_by_an_order_and_never_passes(
    *,
    rule: Rule,
    state: LaneState,
    written: list[int],
    left_out: tuple[int, ...],
    stops_at: int | None,
    why: str | None,
) -> None:
    found = plan([*BATCH[:3], broken(103), record(104, "US"), record(105)], rules_of(rule), state=state)

    assert (offsets(found), found.quarantined) == (written, left_out)
    assert (found.stop and found.stop.upstream_offset) == stops_at
    assert found.next == (stops_at or 106)
    details = [*(each.detail for each in found.losses(now=T)), *([found.stop.detail] if found.stop else [])]
    assert not [each for each in details if "secret" in each]
    if found.stop is not None:
        assert (found.stop.reason, found.stop.cause) == ("refused", TRANSFORM_FAILED)
    assert [why is not None and why in each.detail for each in found.losses(now=T)] == [True] * len(left_out)


def test_the_first_of_two_obstacles_stops_a_lane_and_nothing_behind_it_is_passed() -> None:
    no_time = replace(record(101), timestamp=0)
    held = LaneState(stop=Stop(reason="held", upstream_offset=103, detail="", at=T))
    plans = [
        plan([record(100), no_time, record(102, "US"), broken(103)], rules_of(MASKED)),
        plan([record(100), broken(101), replace(no_time, offset=102)], rules_of(MASKED)),
        plan([record(100), broken(101), record(103)], rules_of(MASKED), state=held),
        plan([record(100), record(103, "US"), broken(104)], rules_of(MASKED), state=held),
    ]

    stops = [(each.stop.upstream_offset, each.stop.cause) for each in plans if each.stop is not None]
    assert stops == [(101, "ZERO_TIMESTAMP"), (101, TRANSFORM_FAILED), (101, TRANSFORM_FAILED), (103, "")]
    assert [(each.next, each.filtered) for each in plans] == [(101, ())] * 4


def test_whole_batches_are_opened_for_a_rule_and_one_that_nobody_can_read_stops_the_lane_unless_ordered() -> None:
    batches = [batch_of(BATCH[:2]), batch_of(BATCH[2:4]), batch_of([record(104), record(105)])]
    batches[1] = replace(batches[1], payload=memoryview(b"no records"))
    orders = LaneState(quarantine=(LeftOut(first=102, next=103),))

    stopped = plan(batches, rules_of(MASKED), begins=100, covered=106)
    ordered = plan(batches, rules_of(MASKED), begins=100, covered=106, state=orders)

    assert (offsets(stopped), stopped.filtered, stopped.stop and stopped.stop.upstream_offset) == ([100], (101,), 102)
    assert stopped.next == 102
    assert (offsets(ordered), ordered.quarantined, ordered.stop, ordered.next) == (
        [100, 104, 105],
        (102, 103),
        None,
        106,
    )
    assert all(isinstance(each, Record) for each in ordered.write)
    assert offsets(plan(batches[1:], rules_of(MASKED), begins=104)) == [104, 105]


def test_what_is_delivered_again_is_compared_by_the_rule_of_its_run_whatever_is_in_force_now() -> None:
    documents = MemoryDocuments()
    run = settled(plan(BATCH, rules_of(MASKED, documents=documents)))

    for now_in_force in (MASKED, replace(MASKED, keep=""), replace(MASKED, fields={"mail": "drop"})):
        rules = rules_of(now_in_force, documents=documents, version=2)

        def changed(rule: bytes, each: Record, rules: FlowRules = rules) -> CopyOfRecord:
            return rules.changed("orders", 0, rule, each)

        assert contradiction(BATCH, [run], changed) is None
        for offset, other in ((103, record(9)), (103, record(9, "US")), (102, record(9))):
            others = [replace(each, value=other.value) if each.offset == offset else each for each in BATCH]
            found = contradiction(others, [run], changed)
            assert found is not None
            assert found[0] == offset


def test_where_a_rule_is_not_at_hand_what_is_delivered_again_is_compared_by_offset_and_time() -> None:
    run = settled(plan(BATCH, rules_of(MASKED)))

    for changed in ({}, {"changed": lambda rule, each: rules_of(MASKED).changed("orders", 0, b"another" + rule, each)}):
        assert contradiction(BATCH, [run], **changed) is None
        late = replace(BATCH[3], timestamp=T + 900)
        assert contradiction([*BATCH[:3], late], [run], **changed) is not None
        assert contradiction([record(105)], [dataclasses.replace(run, next=106)], **changed) is not None


def test_a_rule_is_kept_once_it_is_used_and_is_found_by_its_id_when_another_one_is_in_force() -> None:
    documents = MemoryDocuments()
    first = rules_of(MASKED, documents=documents).of("orders")
    assert first is not None
    rules_of(replace(MASKED, version=7), documents=documents).of("orders")  # it decides nothing else
    later = rules_of(replace(MASKED, keep=""), documents=documents, version=2)

    again = later.by_id("orders", first.id)

    assert len(documents.documents) == 1, "who proves a run writes nothing"
    assert (later.of("payments"), later.of("orders") is not None) == (None, True)
    assert again.in_force.key_versions == {"pii": 1}
    assert again.apply(record(100), 0) == first.apply(record(100), 0) != later.of("orders").apply(record(100), 0)  # type: ignore[union-attr]  # it has one
    assert [key for _, key in documents.documents] == [document_of(first.id), document_of(later.of("orders").id)]  # type: ignore[union-attr]  # same


def test_a_rule_that_is_not_kept_or_lacks_a_key_is_named() -> None:
    documents = MemoryDocuments()
    first = rules_of(MASKED, documents=documents).of("orders")
    assert first is not None

    with pytest.raises(ConfigurationError, match="is not among the flow's documents"):
        rules_of(documents=MemoryDocuments()).by_id("orders", first.id)
    for other in (b"{", b'{"rule":{"topics":["orders"]}}'):
        changed = MemoryDocuments({(FLOW, document_of(first.id)): other})
        with pytest.raises(ConfigurationError, match="is not among the flow's documents"):
            rules_of(documents=changed).by_id("orders", first.id)
    with pytest.raises(ConfigurationError, match="pii"):
        rules_of(documents=documents, keys={}).by_id("orders", first.id)


def test_a_rule_for_avro_gets_the_schemas_of_the_source() -> None:
    class Schemas:
        def definitions(self, schema_id: SchemaId) -> tuple[str, ...]:
            """One for each id."""
            return (f'{{"type": "fixed", "name": "F", "size": {schema_id}}}',)

    rules = rules_of(Rule(topics=("orders",), format="avro", keep="value == 'ab'"))
    rules.schemas = Schemas()
    values = [b"\0\0\0\0\2ab", b"\0\0\0\0\3abc"]

    ready = rules.of("orders")

    assert ready is not None
    assert [ready.apply(replace(record(1), value=value), 0) is not None for value in values] == [True, False]
