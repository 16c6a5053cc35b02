"""Latest values of compacted topics: whatever compaction has removed is no finding, and what is wrong is one."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorless.records.record import Record
from mirrorless.verify.compacted_keys import Expiry, KeyVerdict, Latest, judge_key, take_key
from mirrorless.verify.findings import LaneVerdict
from spark.jobs.verify import compacted_keys as partial
from spark.jobs.verify.compacted_keys import LastOfKeys

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


@given(keys=st.lists(st.integers(0, 5), max_size=40), most=st.integers(1, 8))
def test_a_task_yields_the_last_record_of_each_key_and_never_holds_more_keys_than_it_may(
    keys: list[int], most: int
) -> None:
    records = [Record(at, 1, [], b"%d" % key, b"%d" % at) for at, key in enumerate(keys)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partial, "HELD_KEYS", most)
        seen = LastOfKeys(3)
        batches = [batch for each in records for batch in seen.take([each], 0)] + list(seen.rows())

    last: dict[bytes, int] = {}
    for row in (row for batch in batches for row in batch.to_pylist()):
        assert (row["lane"], row["source"], row["pending"]) == (3, True, True)
        last[row["key"]] = max(row["offset"], last.get(row["key"], -1))
    assert sorted(last.values()) == sorted({key: at for at, key in enumerate(keys)}.values())
    assert max([batch.num_rows for batch in batches], default=0) <= most
    if most > 6:
        assert sum(batch.num_rows for batch in batches) == len(set(keys))
