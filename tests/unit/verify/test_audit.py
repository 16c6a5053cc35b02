"""Audits of one partition from its two logs: each fault is found as itself, in its place, and nothing else is one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from mirrorless.clock import Deadline
from mirrorless.flow.settings import ClusterSettings
from mirrorless.jobs.copy_task import Chunk, OffsetRange
from mirrorless.records.record import Record
from mirrorless.verify import compacted_keys, comparison, side_by_side
from mirrorless.verify.audit import (
    ABORTED,
    EARLY,
    FOUND,
    AuditTask,
    AuditVerdict,
    LogsAudit,
    audit_report,
    audit_totals,
    is_true_copy,
)
from mirrorless.verify.comparison import RecordAt, compare
from mirrorless.verify.side_by_side import LATE, TOO_MANY
from tests.support.verified_lane import MemoryLog, numbered

Values = list[int]
Counts = dict[str, int]
CLEAN: Counts = dict.fromkeys(FOUND, 0)


def only(**counts: int) -> Counts:
    return CLEAN | counts


def found(verdict: AuditVerdict) -> Counts:
    return {kind: getattr(verdict.counts, kind) for kind in FOUND}


def log_of(values: Iterable[int], *, start: int = 0, chunk: int = 7) -> MemoryLog:
    log = MemoryLog(start=start, next=start, chunk=chunk)
    for value in values:
        log.add(numbered(value))
    return log


@dataclass(slots=True)
class Clock:
    """Time that passes only while somebody waits; something may happen meanwhile."""

    now: float = 0.0
    happens: Callable[[], None] = lambda: None

    def pause(self, seconds: float) -> None:
        """Wait."""
        self.now += seconds
        self.happens()


def audit(
    source: MemoryLog,
    target: MemoryLog,
    *,
    uncommitted: MemoryLog | None = None,
    clock: Clock | None = None,
    **task: Any,
) -> AuditVerdict:
    clock = clock or Clock()
    return LogsAudit(
        task=AuditTask(
            source=ClusterSettings(alias="a", bootstrap="a:9092"),
            target=ClusterSettings(alias="b", bootstrap="b:9092"),
            topic="orders",
            copy="a.orders",
            partition=3,
            **task,
        ),
        source=source,
        target=target,
        uncommitted=uncommitted or source,
        note=Mock(),
        pause=clock.pause,
        clock=lambda: clock.now,
    ).run()


@pytest.fixture(params=["wide", "narrow"])
def view(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The view ahead as it is, and one so narrow that any row is far."""
    if request.param == "narrow":
        narrow(monkeypatch)


def narrow(patch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "WINDOWS": (4, 8, 16),
        "MEETING": 3,
        "CONTENTS": 2,
        "STRIDE": 4,
        "SAMPLES": 40,
        "FLUSHED": 5,
    }.items():
        patch.setattr(side_by_side, name, value)


N = list(range(200))

FAULTS: dict[str, tuple[Values, Counts, list[tuple[str, int | None, int | None, int]]]] = {
    "nothing": (N, CLEAN, []),
    "one lost": (N[:50] + N[51:], only(missing=1), [("missing", 50, None, 1)]),
    "a row lost": (N[:50] + N[90:], only(missing=40), [("missing", 50, None, 40)]),
    "the first lost": (N[3:], only(missing=3), [("missing", 0, None, 3)]),
    "one changed": ([*N[:50], 999, *N[51:]], only(different=1), [("different", 50, 50, 1)]),
    "a row changed": (N[:50] + list(range(900, 940)) + N[90:], only(different=40), [("different", 50, 50, 40)]),
    "one twice, far away": ([*N[:150], 50, *N[150:]], only(duplicated=1), [("duplicated", 50, 150, 1)]),
    "a row again": (N[:150] + N[60:], only(duplicated=90), [("duplicated", 60, 150, 90)]),
    "a row again at the end": (N + N[60:], only(duplicated=140), [("duplicated", 60, 200, 140)]),
    "in part again at the end": (N + N[60:100], only(duplicated=40), [("duplicated", 60, 200, 40)]),
    "a row early, at the end": (N[:25] + N[172:] + N[25:172], only(reordered=28), []),
    "all again": (N + N, only(duplicated=200), [("duplicated", 0, 200, 200)]),
    "again, again, and only in part": (
        N[:150] + N[100:130] + N[20:],
        only(duplicated=160),
        [("duplicated", 100, 150, 160)],
    ),
    "two swapped": ([*N[:50], 51, 50, *N[52:]], only(reordered=1), [("reordered", 50, 51, 1)]),
    "a row late": (N[:50] + N[90:150] + N[50:90] + N[150:], only(reordered=40), [("reordered", 50, 110, 40)]),
    "a row of others": (N[:50] + list(range(900, 940)) + N[50:], only(foreign=40), [("foreign", None, 50, 40)]),
    "others that end with the view": (
        N[:50] + list(range(900, 914)) + N[50:],
        only(foreign=14),
        [("foreign", None, 50, 14)],
    ),
    "others before the last": (
        N[:198] + list(range(900, 940)) + N[198:],
        only(foreign=40),
        [("foreign", None, 198, 40)],
    ),
    "late, and then again": (
        N[:50] + N[90:150] + N[50:] + N[50:],
        only(reordered=40, duplicated=210),
        [],
    ),
    "lost, and later again": (N[:50] + N[90:150] + N[50:], only(reordered=40, duplicated=60), []),
}


@pytest.mark.usefixtures("view")
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_as_itself_and_in_its_place(name: str) -> None:
    values, counts, places = FAULTS[name]

    verdict = audit(log_of(N), log_of(values, chunk=11))

    assert found(verdict) == counts
    assert verdict.counts.records == len(values)
    assert verdict.counts.pending == 0
    if places:
        first = [(each.kind, _first(each.upstream), _first(each.downstream), each.records) for each in verdict.findings]
        assert _rows(first) == places


def _first(offsets: OffsetRange | None) -> int | None:
    return None if offsets is None else offsets.first


def _rows(findings: Sequence[tuple[str, int | None, int | None, int]]) -> list[tuple[str, int | None, int | None, int]]:
    """Findings in a row as one: how far they are joined depends on the view."""
    rows: list[tuple[str, int | None, int | None, int]] = []
    for kind, upstream, downstream, records in sorted(findings, key=lambda each: each[2] or each[1] or 0):
        if rows and rows[-1][0] == kind and _follows(rows[-1], upstream, downstream):
            rows[-1] = (*rows[-1][:3], rows[-1][3] + records)
        else:
            rows.append((kind, upstream, downstream, records))
    return rows


def _follows(row: tuple[str, int | None, int | None, int], upstream: int | None, downstream: int | None) -> bool:
    """Whether a finding goes on where a row ends. Of copies that stand twice, only some findings know of what."""
    if row[2] is not None:
        return downstream == row[2] + row[3]
    return upstream is not None and row[1] is not None and upstream == row[1] + row[3]


@pytest.mark.parametrize(
    ("copy", "what", "first"),
    [
        (N[:50] + N[90:150] + N[50:90] + N[150:], LATE, 50),
        (N[:50] + N[150:190] + N[50:150] + N[190:], EARLY, 150),
    ],
    ids=["late", "early"],
)
def test_a_row_far_from_its_place_is_one_finding_that_says_on_which_side_of_it_the_row_stands(
    copy: Values, what: str, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow(monkeypatch)

    verdict = audit(log_of(N), log_of(copy))

    assert found(verdict) == only(reordered=40)
    assert {each.what for each in verdict.findings} == {what}
    assert verdict.findings[0].upstream is not None
    assert verdict.findings[0].upstream.first == first


@st.composite
def copies(draw: st.DrawFn) -> tuple[Values, Values]:
    """Records that are all different, and a copy with faults of all kinds."""
    values = list(range(draw(st.integers(1, 120))))
    copy, fresh = list(values), iter(range(1_000, 100_000))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(copy)))
        size = draw(st.sampled_from((1, 1, 2, 9, 30)))
        some, to = copy[at : at + size], draw(st.integers(0, len(copy)))
        match draw(st.sampled_from(("lost", "again", "moved", "changed", "foreign"))):
            case "lost":
                copy[at : at + size] = []
            case "again":
                copy[to:to] = some
            case "moved":
                copy[at : at + size] = []
                copy[to:to] = some
            case "changed":
                copy[at : at + size] = [next(fresh) for _ in some]
            case "foreign":
                copy[at:at] = [next(fresh) for _ in range(size)]
    return values, copy


@pytest.mark.parametrize("is_narrow", [False, True])
@given(both=copies(), chunks=st.tuples(st.integers(1, 9), st.integers(1, 9)))
def test_whatever_happened_to_a_copy_its_records_are_counted_right(
    *, is_narrow: bool, both: tuple[Values, Values], chunks: tuple[int, int]
) -> None:
    """Held against counts of contents; the order, where the view is wide, against the whole comparison."""
    values, copy = both
    source, target = log_of(values, chunk=chunks[0]), log_of(copy, chunk=chunks[1])
    with pytest.MonkeyPatch.context() as patch:
        if is_narrow:
            narrow(patch)
        verdict = audit(source, target)

    counts, times = verdict.counts, Counter(copy)
    whole = compare(*([RecordAt.of(each) for each in log.records.values()] for log in (source, target)))
    assert counts.duplicated == sum(times[each] - 1 for each in values if times[each])
    assert counts.different + counts.foreign == sum(each >= 1_000 for each in copy)
    assert counts.missing + counts.different + counts.pending == sum(not times[each] for each in values)
    assert counts.records == len(copy) == counts.proved + sum(found(verdict).values()) - counts.missing
    assert counts.reordered >= whole.reordered > 0 or whole.reordered == 0
    assert is_narrow or counts.duplicated or (counts.reordered > 0) == (whole.reordered > 0)
    assert (values == copy) == (found(verdict) == CLEAN and not counts.pending)


@pytest.mark.parametrize("is_narrow", [False, True])
@given(
    values=st.lists(st.integers(0, 2), max_size=80),
    gone=st.sets(st.integers(0, 79)),
    more=st.lists(st.tuples(st.integers(0, 79), st.integers(0, 2)), max_size=3),
)
@settings(max_examples=50)
def test_contents_that_repeat_are_counted_right(
    *, is_narrow: bool, values: Values, gone: set[int], more: list[tuple[int, int]]
) -> None:
    copy = [value for at, value in enumerate(values) if at not in gone]
    for at, value in more:
        copy.insert(at, value)
    with pytest.MonkeyPatch.context() as patch:
        if is_narrow:
            narrow(patch)
        verdict = audit(log_of(values), log_of(copy))

    counts = verdict.counts
    assert counts.records == len(copy) == counts.proved + sum(found(verdict).values()) - counts.missing
    assert (values == copy) == (found(verdict) == CLEAN and not counts.pending)


def test_the_same_content_many_times_in_a_row_costs_no_more_than_others() -> None:
    same = [7] * 30_000
    copy = [*same[:-1], *N[:100], *same[:500], *N[100:]]

    verdict = audit(log_of([*same, *N], chunk=5_000), log_of(copy, chunk=5_000))

    assert found(verdict) == only(reordered=1, duplicated=499)  # one of the 500 stands for the one that is not there


def test_few_contents_in_any_order_are_judged_by_their_number_and_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """They meet everywhere: none of that is a place where the copy goes on, and not all of it is tried."""
    random, count, tried = Random(3), 30_000, list[int]()
    values, copy = ([random.randrange(2) for _ in range(count)] for _ in range(2))
    source, candidates = log_of(values, chunk=5_000), comparison._candidates

    def counted(*words: Any) -> list[Sequence[int]]:
        found = candidates(*words)
        tried.append(sum(map(len, found)))
        return found

    monkeypatch.setattr(comparison, "_candidates", counted)

    verdict = audit(source, log_of(copy, chunk=5_000))

    more = abs(copy.count(1) - values.count(1))
    assert (verdict.counts.missing, verdict.counts.duplicated) == (more, more)
    assert source.reads == 1
    assert sum(tried) < 10 * count


def test_where_many_records_differ_a_row_that_is_never_long_enough_still_keeps_both_in_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    narrow(monkeypatch)
    copy = [value + 1_000 if value % 3 == 0 else value for value in N if value != 5]

    assert found(audit(log_of(N), log_of(copy))) == only(missing=1, different=67)


def test_a_copy_of_which_everything_differs_is_read_a_few_times_only(monkeypatch: pytest.MonkeyPatch) -> None:
    narrow(monkeypatch)
    values, others = list(range(2_000)), list(range(5_000, 7_000))

    verdict = audit(log_of(values), log_of(others))

    assert found(verdict) == only(different=2_000)
    assert verdict.read < 10 * len(values)


PARTS: dict[str, tuple[dict[str, Any], str]] = {
    "value": ({"value": b"other"}, "value"),
    "tombstone": ({"value": None}, "value of 2 bytes has become null"),
    "empty value": ({"value": b""}, "value of 2 bytes has become empty"),
    "key": ({"key": b"j"}, "key differs from byte 0 on, of 1 bytes"),
    "no key": ({"key": None}, "key of 1 bytes has become null"),
    "header": ({"headers": [("n", None)]}, "header 1 of 1: value of 2 bytes has become null"),
    "one header more": ({"headers": [("n", b"50"), ("n", b"50")]}, "1 headers have become 2, or have other names"),
    "timestamp": ({"timestamp": 5}, "timestamp 1050 has become 5"),
}


@pytest.mark.parametrize("part", PARTS)
def test_a_changed_part_is_named_without_its_content(part: str) -> None:
    fields, said = PARTS[part]
    target = log_of(N)
    target.records[50] = replace(target.records[50], **fields)

    verdict = audit(log_of(N), target)

    assert found(verdict) == only(different=1)
    assert said in verdict.findings[0].what


def test_what_is_not_to_be_compared_makes_no_difference() -> None:
    def changed() -> MemoryLog:
        log = log_of(N)
        for record in log.records.values():
            record.timestamp, record.headers = 9, [("__mskmr", b"us-east"), *record.headers]
        return log

    assert found(audit(log_of(N), changed(), headers_left_out=("__mskmr",), timestamps=False)) == CLEAN
    assert audit(log_of(N), changed(), timestamps=False).counts.different == len(N)
    assert audit(log_of(N), changed(), headers_left_out=("__mskmr",)).counts.different == len(N)


# What cannot be known


@pytest.mark.usefixtures("view")
@pytest.mark.parametrize("older", [2, 60])
def test_what_either_side_has_deleted_by_age_is_no_finding(older: int) -> None:
    expired = audit(log_of(N), log_of(N[older:], start=older))
    fault = audit(log_of(N), log_of(N[older:100] + N[101:], start=older))
    gone = audit(log_of(N[older:], start=older), log_of(N))
    both = audit(log_of(N[older:], start=older), log_of(N[:100] + N[101:]))

    assert (found(expired), expired.counts.expired, expired.counts.proved) == (CLEAN, older, 200 - older)
    assert (found(fault), fault.counts.expired) == (only(missing=1), older)
    assert (found(gone), gone.counts.source_gone, gone.counts.proved) == (CLEAN, older, 200 - older)
    assert (found(both), both.counts.source_gone) == (only(missing=1), older)


@dataclass(slots=True)
class ExpiringLog(MemoryLog):
    """A log of which retention deletes the next records, as soon as so much was read."""

    deletes: dict[int, int] = field(default_factory=dict)

    def read(self, topic: str, partition: int, wanted: OffsetRange, deadline: Deadline) -> Iterator[Chunk]:
        """See `LaneLog.read`."""
        for chunk in MemoryLog.read(self, topic, partition, wanted, deadline):
            self.start = max(self.start, self.deletes.get(chunk.covered, 0))
            yield chunk


@pytest.mark.usefixtures("view")
def test_what_is_deleted_while_it_is_read_is_no_finding() -> None:
    late = ExpiringLog(deletes={70: 120}, chunk=10)
    for value in N:
        late.add(numbered(value))
    copy = N[:30] + N[31:]

    gone = audit(late, log_of(copy))
    late.start = 0
    expired = audit(log_of(copy), late)

    assert (found(gone), gone.counts.source_gone) == (only(missing=1), 50)
    assert (found(expired), expired.counts.expired) == (only(foreign=1), 50)


@pytest.mark.usefixtures("view")
@pytest.mark.parametrize("behind", [1, 5, 100])
def test_records_on_their_way_are_not_lost(behind: int) -> None:
    verdict = audit(log_of(N), log_of(N[: 200 - behind]))
    with_others = audit(log_of(N), log_of([*N[:50], *N[51 : 200 - behind]]))

    assert (found(verdict), verdict.counts.pending) == (CLEAN, behind)
    assert f"from upstream offset {200 - behind} on" in verdict.notes[0]
    assert (found(with_others), with_others.counts.pending) == (only(missing=1), behind)


@dataclass(slots=True)
class LiveLog(MemoryLog):
    """A log of a flow at work: whenever anybody asks where it ends, the flow has gone on."""

    goes_on: Callable[[], None] = lambda: None

    def bounds(self, topic: str, partition: int, deadline: Deadline) -> OffsetRange:
        """See `LaneLog.bounds`."""
        bounds = MemoryLog.bounds(self, topic, partition, deadline)
        self.goes_on()
        return bounds


def test_no_copy_is_ahead_of_a_source_that_is_written_to() -> None:
    source, target = LiveLog(), LiveLog()

    def go_on() -> None:
        for log in (source, target):
            log.add(numbered(log.next))

    for _ in N:
        go_on()
    source.goes_on = target.goes_on = go_on

    verdict = audit(source, target)

    assert (found(verdict), verdict.counts.pending, verdict.counts.proved) == (CLEAN, 0, 201)


def test_the_end_of_the_source_as_it_was_at_first_is_waited_for_and_what_follows_is_not() -> None:
    source, target = log_of(N), log_of(N[:100])

    def happen() -> None:
        if target.next < 150:
            target.add(numbered(target.next))
        else:
            source.add(numbered(source.next))
            for value in range(target.next, min(target.next + 7, source.next)):
                target.add(numbered(value))

    clock = Clock(happens=happen)
    verdict = audit(source, target, clock=clock, wait_seconds=1_000)

    assert (found(verdict), verdict.counts.pending) == (CLEAN, 0)
    assert verdict.counts.proved >= len(N)
    assert clock.now < 100


def test_a_copy_that_does_not_go_on_is_waited_for_as_long_as_was_asked() -> None:
    clock = Clock()
    verdict = audit(log_of(N), log_of(N[:100]), clock=clock, wait_seconds=20)

    assert (verdict.counts.pending, clock.now) == (100, 20)


def test_records_of_transactions_that_were_aborted_are_said_to_be_that() -> None:
    """A replicator that reads uncommitted records, as MirrorMaker does unless told otherwise, copies them."""
    source, uncommitted, target = MemoryLog(), MemoryLog(), log_of([*N[:50], 500, 501, *N[50:]])
    for value in (*N[:50], 500, 501, *N[50:]):
        uncommitted.add(numbered(value))
        source.add(numbered(value))
        if value >= 500:
            del source.records[source.next - 1]

    verdict = audit(source, target, uncommitted=uncommitted)

    assert found(verdict) == only(foreign=2)
    uncommitted.reads = 0
    assert found(audit(log_of(N), target, uncommitted=uncommitted)) == only(foreign=2)
    assert uncommitted.reads == 0, "a source without holes has none of them"
    assert [(each.what, each.upstream, each.downstream) for each in verdict.findings] == [
        (ABORTED, OffsetRange(50, 52), OffsetRange(50, 52))
    ]


def test_more_without_a_partner_than_can_be_kept_are_judged_and_it_is_said_where_that_is_less_certain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(side_by_side, "KEPT", 20)
    monkeypatch.setattr(side_by_side, "FLUSHED", 5)
    changed = [value + 1_000 if value % 9 == 0 else value for value in N]
    others = [each for value in N for each in ((value, value + 1_000) if value % 9 == 0 else (value,))]

    sure, unsure = audit(log_of(N), log_of(changed)), audit(log_of(N), log_of(others))

    assert (found(sure), sure.notes) == (only(different=23), [])
    assert (found(unsure), unsure.notes, is_true_copy([unsure])) == (only(foreign=23), [TOO_MANY], False)


# The latest of each key

Log = list[tuple[int, int, bytes | None]]
"""Offset, key, value."""


@st.composite
def compacted_copies(draw: st.DrawFn) -> tuple[MemoryLog, MemoryLog, Log, int]:
    """A source and its copy, each compacted in its own way; all that was written, and how much of it has come."""
    values = st.one_of(st.none(), st.integers(0, 1).map(lambda number: b"%d" % number))
    written = [
        (offset, key, value)
        for offset, (key, value) in enumerate(
            draw(st.lists(st.tuples(st.integers(0, 4), values), min_size=1, max_size=30))
        )
    ]
    come = draw(st.integers(1, len(written)))
    return _compacted(written, draw), _compacted(written[:come], draw), written, come


def _compacted(log: Log, draw: st.DrawFn) -> MemoryLog:
    """Without some of what a cleaner may remove; the last record always stays."""
    last = {key: offset for offset, key, _ in log}
    made = MemoryLog(next=len(log))
    for offset, key, value in log:
        if last[key] == offset or draw(st.booleans()):
            made.records[offset] = Record(offset, offset, [], b"%d" % key, value)
    return made


@pytest.mark.parametrize("held", [1_000, 2])
@given(both=compacted_copies())
def test_two_sides_that_are_compacted_apart_have_no_finding(
    held: int, both: tuple[MemoryLog, MemoryLog, Log, int]
) -> None:
    source, target, written, come = both
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compacted_keys, "HELD_KEYS", held)
        verdict = audit(source, target, by_keys=True)

    later = {key for offset, key, _ in written if offset >= come}
    assert found(verdict) == CLEAN
    assert verdict.counts.keys == len({key for _, key, _ in written})
    assert verdict.counts.keys_pending >= len(later)


@pytest.mark.parametrize("held", [1_000, 2])
def test_a_key_with_another_value_or_none_is_found(held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compacted_keys, "HELD_KEYS", held)
    source, target = MemoryLog(), MemoryLog()
    for value in range(40):
        for log in (source, target):
            log.add(replace(numbered(value), key=b"%d" % (value % 20)))
    target.records[25] = replace(target.records[25], value=b"other")
    del target.records[26], target.records[6]
    target.records[27] = replace(target.records[27], value=None)

    verdict = audit(source, target, by_keys=True)

    assert found(verdict) == only(different=2, missing=1)
    assert {(each.kind, _first(each.upstream)) for each in verdict.findings} == {
        ("different", 25),
        ("missing", 26),
        ("different", 27),
    }
    assert verdict.counts.keys == 20


def keyed(*keys: bytes, value: bytes = b"v") -> MemoryLog:
    log = MemoryLog()
    for key in keys:
        log.add(Record(-1, 0, [], key, value))
    return log


def test_a_record_like_an_earlier_one_does_not_tell_that_the_copying_has_come_to_it() -> None:
    verdict = audit(keyed(b"a", b"b", b"c", b"a"), keyed(b"a", b"b"), by_keys=True)

    assert (found(verdict), verdict.counts.keys_pending) == (CLEAN, 2)


def test_a_compacted_copy_that_ends_with_nothing_of_the_source_is_not_called_true() -> None:
    """All of it may be on its way, or another topic: nothing tells."""
    verdict = audit(keyed(b"a", b"b"), keyed(b"a", b"b", value=b"w"), by_keys=True)

    assert (found(verdict), verdict.counts.keys_pending, is_true_copy([verdict])) == (CLEAN, 2, False)


# The report


@pytest.mark.parametrize(
    ("copy", "is_true", "sentence"),
    [
        (N, True, "Nothing is wrong: 200 records in order."),
        (N[:90], True, "Nothing is wrong: 90 records in order; 110 not there yet."),
        (N[:50] + N[49:], False, "1 duplicated, beside 200 records in order."),
        ([], False, "Nothing of orders-3 could be compared; nothing is wrong: 0 records in order; 200 not there yet."),
    ],
)
def test_the_report_says_in_one_sentence_what_was_compared_and_found(
    copy: Values, sentence: str, *, is_true: bool
) -> None:
    verdict = audit(log_of(N), log_of(copy))

    report = audit_report([verdict], title="Audit", seconds=2.0, made_at=0)
    assert (report.verdict, is_true_copy([verdict])) == (sentence, is_true)
    assert report.tone == ("good" if is_true else "bad")
    assert audit_totals([verdict], seconds=2.0)["records"] == len(copy)


def test_a_partition_that_could_not_be_read_is_no_true_copy() -> None:
    failed = AuditVerdict(lane="orders-3", topic="orders", partition=3, state="failed", error="no leader")

    report = audit_report([failed], title="Audit", seconds=2.0, made_at=0)
    assert not is_true_copy([failed])
    assert report.verdict.startswith("1 of 1 partitions could not be read")
