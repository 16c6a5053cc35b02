"""Lanes that are read by whole record batches: what passes, what is packed anew, and each step of the protocol."""

from __future__ import annotations

from dataclasses import replace as changed

import pytest
from msgspec.structs import replace

from mirrorless.chain.lane_state import Head, LaneState, LeftOut, Stop
from mirrorless.chain.run import Run, Span
from mirrorless.errors import ChainBroken
from mirrorless.protocol.digest import fingerprint
from mirrorless.protocol.event import Batch
from mirrorless.protocol.outgoing import following_offset, of_batches, opened_to_records, records_in
from mirrorless.protocol.plan import LanePlan, plan_lane
from mirrorless.protocol.replay_check import contradiction
from mirrorless.protocol.settle import Attempt as Writing
from mirrorless.protocol.settle import settle_lane
from mirrorless.records.batch_records import records as records_of
from mirrorless.records.record import Record
from mirrorless.records.record_batch import PassTerms, RecordBatch, batch_digest
from tests.support.batches import batch_of
from tests.support.chains import LANE
from tests.support.protocol_world import TOPIC, T, World, lane, records, replicate

ANY = PassTerms(max_message_bytes=1 << 30)


def batch(*offsets: int, until: int | None = None) -> RecordBatch:
    return batch_of(records(*offsets), "lz4", until=until)


def plan(
    *batches: RecordBatch,
    position: int = 0,
    begins: int = 0,
    state: LaneState = LaneState(),  # noqa: B008  frozen
    terms: PassTerms = ANY,
) -> LanePlan:
    head = Head(generation=0, position=position)
    return plan_lane(LANE, head, state, batches, now=T, begins=begins, terms=terms)


def written(found: LanePlan) -> list[tuple[list[int], bool]]:
    """The upstream offsets of each batch, and whether it passes."""
    assert not found.write or of_batches(found.write)
    return [([*each.upstream], each.passed) for each in found.write]  # type: ignore[union-attr]  # batches


SECOND_AT_5 = batch(5, 6)
FIRST, SECOND, THIRD = batch(0, 1, 2), batch(3, 4), batch(5, 6, 7)


# The plan


def test_whole_batches_pass_as_they_are() -> None:
    found = plan(FIRST, SECOND)

    assert written(found) == [([0, 1, 2], True), ([3, 4], True)]
    assert [each.batch for each in found.write if not isinstance(each, Record)] == [FIRST, SECOND]
    assert (found.next, found.stop) == (5, None)


@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        ([FIRST, batch(3, 5), THIRD], [([0, 1, 2], True), ([3, 5], False), ([5, 6, 7], True)]),
        ([FIRST, batch(3, 4, until=9)], [([0, 1, 2], True), ([3, 4], False)]),
        ([replace(FIRST, attributes=FIRST.attributes | 8), SECOND], [([0, 1, 2], False), ([3, 4], True)]),
        ([batch(0, 2), batch(3, 5)], [([0, 2, 3, 5], False)]),
        ([replace(FIRST, attributes=FIRST.attributes | 32), SECOND], [([3, 4], True)]),
    ],
)
def test_what_cannot_pass_is_packed_anew_in_its_place(
    batches: list[RecordBatch], expected: list[tuple[list[int], bool]]
) -> None:
    assert written(plan(*batches)) == expected


def test_a_header_name_that_is_no_text_passes_inside_a_batch_and_stops_its_lane_where_it_is_the_last() -> None:
    """A run is recognised by its last record, and no reader has that one's name. It can be left out."""
    named = replace(records(4)[0], headers=[("\ufffd", b"")])
    inside = batch_of([records(3)[0], named, *records(5)])
    at_the_end = batch_of([*records(3), named])

    assert written(plan(FIRST, inside)) == [([0, 1, 2], True), ([3, 4, 5], True)]
    found = plan(FIRST, at_the_end)
    assert written(found) == [([0, 1, 2], True), ([3], False)]
    assert found.stop is not None
    assert (found.stop.reason, found.stop.upstream_offset, found.next) == ("refused", 4, 4)
    left_out = plan(FIRST, at_the_end, SECOND_AT_5, state=LaneState(quarantine=LeftOut.each(4)))
    assert (written(left_out)[1:], left_out.stop) == ([([3], False), ([5, 6], True)], None)


def test_a_batch_that_is_packed_anew_has_the_same_records() -> None:
    appended = replace(FIRST, attributes=FIRST.attributes | 8, max_timestamp=T + 77)

    (one,) = plan(appended).write

    assert not isinstance(one, Record)
    assert not one.batch.has_log_append_time
    assert [(each.timestamp, each.value) for each in records_of(one.batch)] == [(T + 77, b"%d" % i) for i in range(3)]


def test_a_batch_above_the_targets_limit_is_packed_in_smaller_ones() -> None:
    large = batch(*range(100))

    found = plan(large, SECOND, terms=PassTerms(max_message_bytes=large.size - 1))

    sizes = [(len(offsets), passed) for offsets, passed in written(found)]
    assert sum(size for size, passed in sizes if not passed) == 100
    assert len(sizes) > 2
    assert sizes[-1] == (2, True)


@pytest.mark.parametrize(
    ("position", "expected", "replayed"),
    [
        (1, [([1, 2], False), ([3, 4], True)], [0]),
        (3, [([3, 4], True)], [0, 1, 2]),
        (5, [], [0, 1, 2, 3, 4]),
    ],
)
def test_a_batch_that_the_position_cuts_is_packed_anew(
    position: int, expected: list[tuple[list[int], bool]], replayed: list[int]
) -> None:
    found = plan(FIRST, SECOND, position=position)

    assert written(found) == expected
    assert [each.offset for each in records_in(found.replayed)] == replayed


@pytest.mark.parametrize(
    ("position", "begins", "expected", "replayed"),
    [
        (0, 1, [([1, 2], False), ([3, 4], True)], []),
        (0, 3, [([3, 4], True)], []),
        (4, 4, [([4], False)], []),
        (4, 1, [([4], False)], [1, 2, 3]),
        (5, 4, [], [4]),
    ],
)
def test_what_lies_in_a_batch_below_the_offset_that_was_read_from_is_no_part_of_the_lane(
    position: int, begins: int, expected: list[tuple[list[int], bool]], replayed: list[int]
) -> None:
    """A lane begins inside a batch where its group stood there, or where a reset goes on."""
    found = plan(FIRST, SECOND, position=position, begins=begins)

    assert written(found) == expected
    assert [each.offset for each in records_in(found.replayed)] == replayed


def test_a_quarantined_offset_is_left_out_of_its_batch() -> None:
    found = plan(FIRST, SECOND, THIRD, state=LaneState(quarantine=LeftOut.each(4, 5)))

    assert written(found) == [([0, 1, 2], True), ([3, 6, 7], False)]
    assert (found.quarantined, found.next) == ((4, 5), 8)


@pytest.mark.parametrize(
    ("at", "expected"),
    [(4, [([0, 1, 2], True), ([3], False)]), (3, [([0, 1, 2], True)]), (99, [([0, 1, 2], True), ([3, 4], True)])],
)
def test_a_stop_cuts_its_batch(at: int, expected: list[tuple[list[int], bool]]) -> None:
    stop = Stop(reason="held", upstream_offset=at, detail="", at=T)

    found = plan(FIRST, SECOND, state=LaneState(stop=stop))

    assert written(found) == expected
    assert found.stop == (stop if at < 5 else None)


@pytest.mark.parametrize("damaged", [0, 1])
def test_a_batch_that_cannot_be_decoded_stops_the_lane_and_those_before_it_pass(damaged: int) -> None:
    """The last one, because of its fingerprint; or one that cannot pass."""
    noise = replace(SECOND, payload=memoryview(b"noise"), attributes=SECOND.attributes | 8 * damaged)
    found = plan(FIRST, noise, *[THIRD] * damaged)

    assert written(found) == [([0, 1, 2], True)]
    assert found.stop is not None
    assert (found.stop.reason, found.stop.upstream_offset) == ("refused", 3)
    assert found.stop.detail.startswith("batch @ 3: the records of the batch cannot be decoded")
    assert written(plan(FIRST, noise, *[THIRD] * damaged, begins=1)) == [([1, 2], False)]


@pytest.mark.parametrize("position", [3, 4])
def test_a_batch_below_the_position_is_left_whole(position: int) -> None:
    """It is not written, so that it need not be decoded to be planned."""
    noise = replace(FIRST, payload=memoryview(b"noise"))

    found = plan(noise, SECOND, position=position)

    assert [each.batch for each in found.replayed if not isinstance(each, Record)] == [noise]
    assert found.stop is None


@pytest.mark.parametrize("position", [0, 3])
def test_a_batch_without_records_is_no_part_of_a_lane_wherever_it_lies(position: int) -> None:
    marker = replace(FIRST, attributes=FIRST.attributes | 32)

    found = plan(marker, SECOND, position=position)

    assert (written(found), found.replayed) == ([([3, 4], True)], [])


def test_content_ends_behind_its_last_record_or_batch() -> None:
    assert following_offset(records(2, 5)) == 6
    assert following_offset([FIRST, batch(3, 4, until=9)]) == 9


def test_the_first_elements_of_a_plan_are_whole_batches() -> None:
    found = plan(FIRST, SECOND, THIRD)

    assert written(found.first(2)) == [([0, 1, 2], True), ([3, 4], True)]
    assert found.first(2).next == 5


def test_batches_are_opened_to_their_records_from_an_offset_on_where_there_are_any() -> None:
    damaged = replace(SECOND, payload=SECOND.payload[:3])
    control = replace(FIRST, records_count=0)

    assert opened_to_records([control, FIRST, SECOND], 2) == records(2, 3, 4)
    for left in ([FIRST, damaged], [FIRST, SECOND, control]):
        assert opened_to_records(left, 5) is left


def test_whole_batches_without_the_terms_of_their_topic_are_a_fault_of_the_program() -> None:
    with pytest.raises(ValueError, match="no terms"):
        plan_lane(LANE, Head(generation=0, position=0), LaneState(), [FIRST], now=T)


# The run


def settled(found: LanePlan, bases: list[int]) -> Run:
    return settle_lane(found, bases, Writing(writer="w", attempt="a", request="r", now=T))


def test_a_run_of_batches_has_a_span_for_each_and_the_digest_of_what_was_produced() -> None:
    last = batch(6, 7)
    found = plan(FIRST, batch(3, 5), last)

    run = settled(found, [100, 103, 110])

    assert run.spans == (Span(0, 100, 4), Span(5, 104, 1), Span(6, 110, 2))
    assert (run.digest_of, run.records) == ("batches", 7)
    assert run.digest == batch_digest(each.batch for each in found.write if not isinstance(each, Record))
    assert run.fingerprint == fingerprint(records(7)[0])
    assert run.bytes == sum(len(each.batch.payload) for each in found.write if not isinstance(each, Record))
    assert run.passed_bytes == len(FIRST.payload) + len(last.payload)
    assert (run.oldest_timestamp, run.newest_timestamp) == (T, T + 7)


def test_batches_that_continue_each_other_on_both_sides_are_one_span() -> None:
    assert settled(plan(FIRST, SECOND, THIRD), [100, 103, 106]).spans == (Span(0, 100, 5), Span(5, 106, 3))


@pytest.mark.parametrize("bases", [[100], [100, 102], [103, 100], [-1, 5], [100, 103, 105]])
def test_batches_whose_records_would_overlap_are_no_run(bases: list[int]) -> None:
    with pytest.raises(ChainBroken, match="2 batches were acknowledged"):
        settled(plan(FIRST, SECOND), bases)


# The replay check


def test_what_came_again_agrees_with_a_run_of_batches_by_spans_and_by_the_last_record_alone() -> None:
    run = settled(plan(FIRST, SECOND), [100, 103]).committed()
    again = records(0, 1, 2, 3, 4)

    assert contradiction(again, [run]) is None
    # A header's timestamps are no bounds of a record's, and the digest is not of records.
    assert contradiction([again[0], replace(again[1], timestamp=5), *again[2:]], [run]) is None
    assert contradiction([*again[:4], replace(again[4], value=b"other")], [run]) is not None
    found = contradiction([again[0]], [changed(run, spans=(Span(1, 101, 4),), examined=False)])
    assert found == (0, "a record stands where there was none when this offset was passed")


# The steps


def world(*batches: RecordBatch, others: tuple[int, ...] = ()) -> World:
    source = [each for one in batches for each in records_of(one)]
    there = World({0: [replace(each) for each in source], **({1: records(*others)} if others else {})})
    there.batches = {0: list(batches), **({1: [batch_of(records(*others))]} if others else {})}
    return there


@pytest.mark.parametrize("refused", [0, 2, 4, 5, 7])
def test_a_refused_record_inside_a_batch_stops_its_lane_at_the_record(refused: int) -> None:
    there = world(FIRST, SECOND, THIRD, others=(0, 1))
    there.cluster.refuses = lambda _, partition, each: partition == 0 and each.value == b"%d" % refused

    outcome = replicate(there.environment(), there.raw(there.whole()))

    assert {place: (stop.reason, stop.upstream_offset) for place, stop in outcome.stopped.items()} == {
        (TOPIC, 0): ("refused", refused)
    }
    assert (there.visible(0), there.visible(1)) == ([*range(refused)], [0, 1])
    there.assert_invariants()
    passed = [run for run in there.runs() if run.passed_bytes]
    assert bool(passed) == (refused > 2), "what lies before the refused batch passes"

    there.states.quarantine(lane(), *LeftOut.each(refused))
    assert replicate(there.environment(), there.raw(there.whole())).stopped == {}
    assert there.visible() == [each for each in range(8) if each != refused]
    assert [loss.first for loss in there.ledger.read(lane())] == [refused]


@pytest.mark.parametrize("large", [0, 2, 4, 7])
def test_a_record_of_a_batch_that_is_opened_is_packed_by_the_codec_by_which_it_fits(large: int) -> None:
    there = world(FIRST, SECOND, THIRD, others=(0, 1))
    there.cluster.fits = lambda by, each: each.value != b"%d" % large or by == "gzip"

    assert replicate(there.environment(), there.raw(there.whole())).stopped == {}

    assert (there.visible(0), there.visible(1)) == ([*range(8)], [0, 1])
    there.assert_invariants()


def test_batches_that_are_only_too_large_are_written_in_smaller_ones_and_the_next_are_packed_anew_at_once() -> None:
    there = world(FIRST, SECOND, batch(*range(5, 25)), batch(25, 26), batch(*range(27, 40)))
    there.cluster.batch_bytes = 40
    environment = there.environment()

    assert replicate(environment, there.raw(there.batch(p0=[0, 26]))).stopped == {}
    there.cluster.requests.clear()
    assert replicate(environment, there.raw(there.batch(p0=[27, 39]))).stopped == {}

    assert there.visible() == [*range(40)]
    assert sum(there.cluster.requests) == 13, "nothing was refused again"
    there.assert_invariants()


def test_a_lane_with_several_refused_batches_has_every_run_in_its_outcome() -> None:
    """Each is written by records, alone; those between them pass."""
    there = world(FIRST, batch(*range(3, 23)), batch(23, 24), batch(25, 26), batch(*range(27, 47)))
    there.cluster.batch_bytes = 40

    outcome = replicate(there.environment(), there.raw(there.whole()))

    runs = there.runs()
    assert [*outcome.runs] == runs
    assert all(run.position < run.next for run in runs)
    passed = [(run.position, run.next) for run in runs if run.passed_bytes]
    assert passed == [(0, 3), (23, 27)]
    assert (there.visible(), outcome.stopped) == ([*range(47)], {})
    there.assert_invariants()


def refusing_once(there: World, *offsets: int, lost_at: int | None = None) -> list[bytes | None]:
    """Let the target refuse these records once, one after the other, and lose its log when it is given another.

    Returns:
        those that it has not refused yet.
    """
    left: list[bytes | None] = [b"%d" % offset for offset in offsets]

    def refuses(topic: str, partition: int, record: Record) -> bool:
        if record.value == b"%d" % (-1 if lost_at is None else lost_at):
            there.cluster.topics[topic][partition].clear()
        if record.value not in left[:1]:
            return False
        del left[0]
        return True

    there.cluster.refuses = refuses
    return left


def test_a_target_that_refuses_what_it_took_a_moment_ago_is_searched_again_from_there() -> None:
    there = world(FIRST, SECOND, THIRD)
    left = refusing_once(there, 3, 1)

    outcome = replicate(there.environment(), there.raw(there.whole()))

    assert (there.visible(), outcome.stopped, left) == ([*range(8)], {}, [])
    there.assert_invariants()


@pytest.mark.parametrize("refused", [5, 3])
def test_a_target_that_loses_records_while_a_refusal_is_searched_stops_the_lane(refused: int) -> None:
    """Before the batches in front of the refused one are written again, or while those behind it are."""
    there = world(FIRST, SECOND, THIRD)
    environment = there.environment()
    replicate(environment, there.raw(there.batch(p0=[0, 2])))
    refusing_once(there, refused, lost_at=5)

    outcome = replicate(environment, there.raw(there.batch(p0=[3, 7])))

    assert outcome.stopped[TOPIC, 0].reason == "broken"


def test_a_lane_begins_inside_a_batch_where_it_was_read_from() -> None:
    there = world(FIRST, SECOND)

    replicate(there.environment(), Batch(records={(TOPIC, 0): [FIRST, SECOND]}, begins={(TOPIC, 0): 1}))

    assert there.visible() == [1, 2, 3, 4]


def test_a_lane_that_a_job_has_waits_at_its_first_batch() -> None:
    there = world(SECOND)
    there.lease()

    outcome = replicate(there.environment(), there.raw(there.whole()))

    assert outcome.waiting[TOPIC, 0].upstream_offset == 3
