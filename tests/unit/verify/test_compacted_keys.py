"""Latest values of compacted topics: whatever compaction has removed is no finding, and what is wrong is one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorless.errors import Retriable
from mirrorless.jobs.copy_task import OffsetRange
from mirrorless.records.record import Record
from mirrorless.verify import compacted_keys
from mirrorless.verify.compacted_keys import Expiry, KeyVerdict, Latest, judge_key, take_key
from mirrorless.verify.findings import LaneVerdict
from mirrorless.verify.parts import LaneKeys
from tests.support.verified_lane import MemoryLog, VerifiedLane

Log = list[tuple[int, int, bytes | None]]
"""Offset, key, value."""

History = tuple[Log, int, Log, bool]
"""A source log, the lane's position, the target's log, each compacted in its own way; whether the lane is behind."""


@st.composite
def histories(draw: st.DrawFn) -> History:
    """Some records of a few keys."""
    values = st.one_of(st.none(), st.integers(0, 2).map(lambda number: b"%d" % number))
    written = draw(st.lists(st.tuples(st.integers(0, 3), values), min_size=1, max_size=20))
    log: Log = [(offset, key, value) for offset, (key, value) in enumerate(written)]
    position = draw(st.integers(0, len(log)))
    copied: Log = [(offset + 100, key, value) for offset, key, value in log[:position]]
    return compacted(log, draw), position, compacted(copied, draw), position < len(log)


def compacted(log: Log, draw: st.DrawFn) -> Log:
    """Without some of what a cleaner may remove: what has a successor, and tombstones with nothing before them."""
    last = {key: offset for offset, key, _ in log}
    kept = [each for each in log if last[each[1]] == each[0] or draw(st.booleans())]
    counts = Counter(key for _, key, _ in kept)
    return [each for each in kept if each[2] is not None or counts[each[1]] > 1 or draw(st.booleans())]


def latest(log: Log, position: int | None = None) -> dict[int, Latest]:
    """The last record of each key."""
    return {
        key: Latest(offset, repr(value).encode(), value is None, position is not None and offset >= position)
        for offset, key, value in log
    }


def verdict_of(source: dict[int, Latest], target: dict[int, Latest], *, behind: bool) -> LaneVerdict:
    verdict = LaneVerdict(lane="a->b t-0", topic="t", partition=0)
    for key in sorted(source.keys() | target.keys()):
        take_key(verdict, source.get(key), target.get(key), Expiry(behind=behind))
    return verdict


@given(histories())
def test_two_sides_that_are_compacted_apart_have_no_finding(history: History) -> None:
    source, position, target, behind = history

    assert verdict_of(latest(source, position), latest(target), behind=behind).counts.found == 0


@given(histories(), st.data())
def test_a_latest_value_that_is_wrong_or_gone_is_found_once(history: History, data: st.DataObject) -> None:
    source, position, target, behind = history
    upstream, downstream = latest(source, position), latest(target)
    judged = [key for key, each in downstream.items() if key in upstream and not upstream[key].pending]
    live = [key for key in judged if not upstream[key].tombstone]
    if not live:
        return
    key = data.draw(st.sampled_from(live))
    if data.draw(st.booleans()):
        del downstream[key]
        kind = "missing"
    else:
        downstream[key] = downstream[key]._replace(content=b"changed")
        kind = "different"

    counts = verdict_of(upstream, downstream, behind=behind).counts

    assert counts.found == getattr(counts, kind) == 1


LIVE, DELETED = Latest(1, b"1", tombstone=False), Latest(2, b"2", tombstone=True)


@pytest.mark.parametrize(
    ("source", "target", "expiry", "answer"),
    [
        (LIVE, None, Expiry(target=True), "expired"),
        (None, LIVE, Expiry(source=True), "not provable"),
        (None, LIVE, Expiry(behind=True), "not provable"),
        (None, LIVE, Expiry(), "different"),
        (None, DELETED, Expiry(), "same"),
        (DELETED, None, Expiry(), "same"),
        (DELETED, LIVE, Expiry(), "different"),
        (LIVE, DELETED, Expiry(target=True), "different"),
        (DELETED, DELETED._replace(content=b"3"), Expiry(), "different"),
        (LIVE._replace(pending=True), None, Expiry(), "pending"),
    ],
)
def test_what_one_side_has_removed_by_itself_is_not_called_missing(
    source: Latest | None, target: Latest | None, expiry: Expiry, answer: KeyVerdict
) -> None:
    assert judge_key(source, target, expiry) == answer


# The keys of a lane, read from both logs


def keys_of(lane: VerifiedLane, *, held: int = 1_000) -> LaneVerdict:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compacted_keys, "HELD_KEYS", held)
        return lane.verification().keys(LaneKeys(source_expires=False, target_expires=False)).verdict


def a_lane(written: Sequence[tuple[int, bytes | None]], *, copied: int) -> VerifiedLane:
    """Records of some keys, of which the first are replicated."""
    lane = VerifiedLane()
    for at, (key, value) in enumerate(written):
        some = lane.write(Record(-1, 0, [], b"%d" % key, value))
        if at < copied:
            lane.replicate(some)
    return lane


@pytest.mark.parametrize("held", [1_000, 2])
@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=20), st.data())
def test_every_key_of_a_lane_is_judged_once_however_few_may_be_held(
    held: int, keys: list[tuple[int, bool]], data: st.DataObject
) -> None:
    written = [(key, b"%d" % at if live else None) for at, (key, live) in enumerate(keys)]
    copied = data.draw(st.integers(0, len(written)))
    lane, pending = a_lane(written, copied=copied), {key for key, _ in written[copied:]}
    at = data.draw(st.sampled_from([None, *range(copied)]))
    due = False
    if at is not None:
        del lane.target.records[2 * at]  # a marker follows each
        key, value = written[at]
        due = value is not None and key not in pending | {key for key, _ in written[at + 1 : copied]}

    counts = keys_of(lane, held=held).counts

    assert (counts.keys, counts.keys_pending) == (len({key for key, _ in written}), len(pending))
    assert counts.found == 1 if due else counts.found <= (at is not None)


def test_a_key_that_is_written_anew_while_the_source_is_read_is_not_gone() -> None:
    """Compaction removes what was replaced: its successor stands behind the end that the source had at first."""
    lane = a_lane([(0, b"0"), (1, b"1")], copied=2)
    asked = list[MemoryLog]()

    def bounds(log: MemoryLog, *_: Any) -> OffsetRange:
        found = OffsetRange(log.start, log.next)
        asked.append(log)
        if log is lane.source and sum(each is log for each in asked) == 2:  # behind the target
            lane.write(lane.source.records.pop(0))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryLog, "bounds", bounds)
        counts = keys_of(lane).counts

    assert (counts.found, counts.not_provable, counts.keys, counts.keys_pending) == (0, 0, 2, 1)


def test_keys_are_not_compared_while_a_transaction_hides_the_end_of_the_target() -> None:
    lane = a_lane([(0, b"0"), (1, b"1")], copied=2)
    lane.target.next -= 2
    del lane.target.records[2]

    with pytest.raises(Retriable, match="hides the end"):
        keys_of(lane)
