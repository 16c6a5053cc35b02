"""Chains in journals: how entries are packed, what expires, what is remembered, and what that costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mirrorless.chain.chains import IN_DOUBT, SPANS_TOGETHER, JournalChains
from mirrorless.chain.entry import (
    NO_ENTRY,
    Entry,
    Journal,
    Place,
    pack_heads,
    pack_links,
    unpack_heads,
    unpack_links,
)
from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import NEW_LANE, Head
from mirrorless.chain.run import Link, Reset, Run, Span
from mirrorless.chain.search import KEPT, JournalSearch
from mirrorless.clock import Deadline
from mirrorless.errors import Retriable
from mirrorless.protocol.positions import Positions
from mirrorless.records.origin import rows_of
from tests.support.chains import FLOW, LANE, MemoryChains, MemoryLaneStates, reset, run
from tests.support.clusters import MemoryCluster, MemoryTarget
from tests.support.journals import MemoryJournals

NEIGHBOUR = Lane(FLOW, "orders", 1)
SLICE = Journal.of(LANE)
DAY = 86_400
NOW = 1_763_686_800


def chains_at(now: int, memory: MemoryJournals) -> JournalChains:
    """Another environment at a time, seconds since the epoch."""
    return JournalChains(journals=memory, clock=lambda: float(now))


def test_a_lane_whose_newest_entry_has_expired_in_a_busy_journal_is_not_believed() -> None:
    chains = MemoryChains()
    chains.prepare([run(0, 10, (0, 0, 10)), run(0, 5, (0, 0, 5), lane=NEIGHBOUR, attempt="beside")])
    del chains.memory.entries[SLICE, 0]

    heads = chains.beside().heads([LANE, NEIGHBOUR])

    assert heads[LANE] == Head(generation=0, position=0, expired=True)
    assert not heads[NEIGHBOUR].expired


@pytest.mark.parametrize(("left", "expired"), [(3_599, True), (3_601, False)])
def test_an_end_that_nothing_renewed_is_not_believed_in_its_last_hour(left: int, *, expired: bool) -> None:
    chains = MemoryChains()
    chains.prepare([run(0, 10, (0, 0, 10))])

    late = chains_at(NOW + 30 * DAY - left, chains.memory)

    assert late.heads([LANE])[LANE].expired is expired
    assert late.heads([NEIGHBOUR])[NEIGHBOUR] == NEW_LANE
    assert late.renew([LANE], settled_before=2**60, expires_at=NOW + 90 * DAY) == (0 if expired else 1)


def test_a_lane_with_an_expired_end_stops_until_it_is_reset() -> None:
    chains = MemoryChains()
    chains.prepare([run(0, 10, (0, 0, 10))])
    late, states = chains_at(NOW + 30 * DAY, chains.memory), MemoryLaneStates()
    now = (NOW + 30 * DAY) * 1000
    positions = Positions(chains=late, states=states, target=MemoryTarget(MemoryCluster(), "w"), clock=lambda: now)

    positions.load([LANE], lambda topic: f"us-east.{topic}", lambda: 30.0)
    stop = states.states[LANE].stop
    assert stop is not None
    assert (stop.reason, stop.upstream_offset) == ("expired", 10)
    assert positions.state(LANE).stop == stop, "this batch is stopped by it already"

    late.reset(replace(reset(10, 10), at=now))
    assert late.heads([LANE])[LANE] == Head(generation=1, position=10)


def test_an_entry_behind_an_expired_end_leaves_its_neighbours_unbelieved_until_each_is_reset() -> None:
    chains = MemoryChains()
    chains.prepare([run(0, 10, (0, 0, 10)), run(0, 5, (0, 0, 5), lane=NEIGHBOUR)])
    late = chains_at(NOW + 30 * DAY, chains.memory)

    late.reset(replace(reset(10, 10), at=(NOW + 30 * DAY) * 1000))

    heads = chains_at(NOW + 30 * DAY, chains.memory).heads([LANE, NEIGHBOUR])
    assert (heads[LANE].generation, heads[LANE].expired) == (1, False)
    assert heads[NEIGHBOUR] == Head(generation=0, position=5, expired=True)
    assert chains_at(NOW + 30 * DAY, chains.memory).after(NEIGHBOUR, 0, -1, limit=9) == []

    late.reset(replace(reset(5, 5, lane=NEIGHBOUR), at=(NOW + 30 * DAY) * 1000))
    assert late.heads([NEIGHBOUR])[NEIGHBOUR] == Head(generation=1, position=5)


def test_an_expired_head_is_read_again_for_every_batch() -> None:
    chains = MemoryChains()
    chains.prepare([run(0, 10, (0, 0, 10))])
    late, now = chains_at(NOW + 30 * DAY, chains.memory), (NOW + 30 * DAY) * 1000
    target = MemoryTarget(MemoryCluster(), "w")
    positions = Positions(chains=late, states=MemoryLaneStates(), target=target, clock=lambda: now)
    positions.load([LANE], lambda topic: f"us-east.{topic}", lambda: 30.0)
    reads = chains.memory.reads

    positions.load([LANE], lambda topic: f"us-east.{topic}", lambda: 30.0, {LANE: 10})

    assert chains.memory.reads > reads
    assert positions.head(LANE).expired


def test_a_doubt_that_is_settled_late_is_kept_for_the_whole_retention_from_then_on() -> None:
    chains = MemoryChains()
    chains.prepare([replace(run(0, 10, (0, 0, 10)), state="prepared")])
    chains.memory.expire(2**40)

    late = chains_at(NOW + 300 * DAY, chains.memory)
    (doubt,) = late.of_attempts([late.heads([LANE])[LANE].run])  # type: ignore[list-item]  # there is one
    late.confirm([doubt])

    assert chains.memory.entries[SLICE, 0].expires_at == NOW + 330 * DAY
    assert not late.heads([LANE])[LANE].expired


def test_whatever_heads_rest_on_is_renewed_and_the_end_outlives_it() -> None:
    chains, old = MemoryChains(), NOW * 1000
    first = replace(run(0, 10, (0, 0, 10)), settled_at=old)
    lost = replace(run(10, 20, (10, 10, 10)), settled_at=old, state="prepared", attempt="lost")
    chains.prepare([first, lost])
    chains.withdraw([lost])
    chains.prepare([replace(run(0, 5, (0, 0, 5), lane=NEIGHBOUR), settled_at=old + 20 * DAY * 1000)])

    assert chains.beside().renew([LANE], settled_before=old + 1, expires_at=NOW + 90 * DAY) == 3

    chains.memory.expire(NOW + 60 * DAY)
    assert chains.beside().heads([LANE])[LANE].run == first


def test_an_end_that_was_open_is_read_again_with_what_was_added() -> None:
    chains = MemoryChains()
    doubt = replace(run(0, 10, (0, 0, 10)), state="prepared")
    chains.prepare([doubt])
    reader = chains.beside()
    assert reader.heads([LANE])[LANE].in_doubt

    chains.confirm([doubt])
    reads = chains.memory.reads
    assert reader.heads([LANE])[LANE].run == doubt.committed()
    assert chains.memory.reads == reads + 1

    # Since then it expires, and is not believed in its last hour.
    late = NOW + 30 * DAY - 3_000
    reader.clock = reader._ends.clock = lambda: float(late)
    reader._ends._ends[SLICE].at = late
    assert reader.heads([LANE])[LANE].expired


@pytest.mark.parametrize("known", [True, False])
def test_an_end_that_another_thread_has_read_on_does_not_go_back(*, known: bool) -> None:
    memory = _MemoryOvertaken()
    writer, reader = MemoryChains(memory), MemoryChains(memory)
    writer.prepare([run(0, 10, (0, 0, 10))])
    if known:
        reader.heads([LANE])

    def overtake() -> None:
        writer.prepare([run(10, 20, (10, 10, 10))])
        reader.heads([LANE])

    memory.between = overtake
    reader.heads([LANE])  # its answer is of before

    assert reader.at_or_before(LANE, 0, 12, head=Head(generation=0, position=20)) == run(10, 20, (10, 10, 10))


class _MemoryOvertaken(MemoryJournals):
    between: Callable[[], None] | None = None

    def newest(self, after: Mapping[Journal, int], limit: int) -> Mapping[Journal, Sequence[Entry]]:
        """See `Journals.newest`; something else comes between the answer and what is made of it."""
        answer = super().newest(after, limit)
        if after and self.between is not None:
            between, self.between = self.between, None
            between()
        return answer


def test_an_end_that_was_renewed_elsewhere_is_believed_by_who_remembers_it() -> None:
    memory, now = MemoryJournals(), NOW
    chains = JournalChains(journals=memory, clock=lambda: float(now))
    chains.prepare([run(0, 10, (0, 0, 10)), run(0, 5, (0, 0, 5), lane=NEIGHBOUR)])
    assert chains_at(NOW, memory).renew([LANE], settled_before=2**60, expires_at=NOW + 90 * DAY) == 1

    for day in range(1, 31):  # it is never forgotten
        now = NOW + day * DAY - 3_601
        chains.heads([LANE])
    now += 2
    chains.prepare([replace(run(10, 20, (10, 10, 10)), settled_at=now * 1000)])

    assert not chains_at(now, memory).heads([NEIGHBOUR])[NEIGHBOUR].expired


def test_an_open_end_that_is_gone_leaves_the_entry_before_it() -> None:
    """A table that was restored to an earlier time."""
    chains, first = MemoryChains(), run(0, 10, (0, 0, 10))
    chains.prepare([first, replace(run(10, 20, (10, 10, 10)), state="prepared")])
    assert chains.heads([LANE])[LANE].in_doubt

    del chains.memory.entries[SLICE, 1]

    assert chains.heads([LANE])[LANE].run == first


def test_an_entry_outlives_the_one_below_that_was_kept_for_longer() -> None:
    """The retention was shortened: the newest entry would expire first, and the lane would count as new."""
    longer = JournalChains(journals=MemoryJournals(), retention_seconds=90 * DAY, clock=lambda: float(NOW))
    memory = longer.journals
    longer.prepare([run(0, 10, (0, 0, 10)), run(0, 5, (0, 0, 5), lane=NEIGHBOUR)])
    assert isinstance(memory, MemoryJournals)

    for following in (10, 20):  # by an environment that reads the end, and by one that remembers it
        chains_at(NOW, memory).prepare([run(following, following + 10, (following, following, 10))])

    assert {entry.expires_at for entry in memory.of(SLICE)} == {NOW + 90 * DAY}


def test_a_journal_that_is_not_believed_keeps_no_other_from_being_renewed() -> None:
    chains, other = MemoryChains(), Lane(FLOW, "orders", 16)
    chains.prepare([run(0, 10, (0, 0, 10))])
    late = chains_at(NOW + 30 * DAY, chains.memory)
    late.prepare([replace(run(0, 10, (0, 0, 10), lane=other), settled_at=(NOW + 30 * DAY) * 1000)])

    for lanes in ([LANE, other], [other, LANE]):
        others = chains_at(NOW + 30 * DAY, chains.memory)
        assert others.renew(lanes, settled_before=2**60, expires_at=NOW + 90 * DAY) == 1


def test_doubts_that_are_remembered_are_bounded() -> None:
    """Every read of heads meets entries that are being written, and few of them are settled here."""
    chains = MemoryChains()
    lanes = [Lane(FLOW, "orders", 16 * number) for number in range(IN_DOUBT + 5)]
    for lane in lanes:
        chains.prepare([replace(run(0, 10, (0, 0, 10), lane=lane), state="prepared")])

    reader = chains.beside()
    assert all(head.in_doubt for head in reader.heads(lanes).values())
    assert len(reader._in_doubt) <= IN_DOUBT


def test_places_far_back_in_a_long_journal_are_found_in_few_reads() -> None:
    chains = MemoryChains()
    busy = [run(n, n + 1, (n, n, 1), lane=NEIGHBOUR if n % 100 else LANE) for n in range(4_000)]
    chains.prepare(busy)

    for place in (0, 1_234, 3_900):
        cold, before = chains.beside(), chains.memory.reads
        following = [link for link in busy if link.lane == NEIGHBOUR and link.position > place][:2]
        assert cold.after(NEIGHBOUR, 0, place, limit=2) == following
        assert cold.at_or_before(LANE, 0, place) == busy[place // 100 * 100]
        assert chains.memory.reads - before <= 60


STRETCHES = st.lists(
    st.tuples(st.integers(0, 2), st.integers(1, 40), st.sampled_from(("committed", "withdrawn", "reset"))), max_size=12
)
"""A lane, how many of its links follow each other, and what becomes of the first of them."""


@example(stretches=[(1, 4, "committed"), (0, 1, "reset")], places=[(0, 0)])
@given(stretches=STRETCHES, places=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 200)), min_size=1, max_size=4))
def test_links_are_found_wherever_they_are_as_a_walk_of_every_entry_finds_them(
    stretches: list[tuple[int, int, str]], places: list[tuple[int, int]]
) -> None:
    chains, lanes = MemoryChains(), [Lane(FLOW, "orders", partition) for partition in range(3)]
    ends = dict.fromkeys(lanes, (0, 0))
    for partition, count, fate in stretches:
        for number in range(count):
            lane, (generation, position) = lanes[partition], ends[lanes[partition]]
            if number == 0 and fate == "reset":
                chains.reset(reset(position, position, lane=lane, generation=generation))
                ends[lane] = generation + 1, position
                continue
            doubtful = number == 0 and fate == "withdrawn"
            one = run(
                position,
                position + 1,
                (position, position, 1),
                lane=lane,
                generation=generation,
                state="prepared" if doubtful else "committed",
                attempt=f"{partition} {len(chains.memory.entries)}",
            )
            chains.prepare([one])
            if doubtful:
                chains.withdraw([one])
            else:
                ends[lane] = generation, position + 1
    for reader in (chains, cold := chains.beside()):  # one that wrote, and one that remembers nothing
        for lane in lanes:
            links = chains.of(lane)
            for place in places:
                behind = [each for each in links if each.generation == place[0] and each.position > place[1]]
                for limit in (1, 3, 1_000):
                    assert reader.after(lane, *place, limit=limit) == behind[:limit]
                before = [each for each in links if (each.generation, each.position) <= place]
                last = before[-1] if before and before[-1].generation == place[0] else None
                assert reader.at_or_before(lane, *place) == last
    cold.heads(lanes)
    newest = {lane: [each for each in chains.of(lane) if each.generation == ends[lane][0]] for lane in lanes}
    found = cold.newest_runs(lanes, limit=5)
    assert {lane: found.get(lane, []) for lane in lanes} == {lane: newest[lane][-5:][::-1] for lane in lanes}


def test_the_next_link_of_a_lane_that_rested_is_found_in_few_reads() -> None:
    chains, resting = MemoryChains(), (0, 2_000, 2_010, 3_990)
    chains.prepare([run(n, n + 1, (n, n, 1), lane=LANE if n in resting else NEIGHBOUR) for n in range(4_000)])
    for place, reads in ((-1, 29), (2_010, 3)):
        reader = chains.beside()
        reader.heads([LANE])
        before = chains.memory.reads
        found = reader.after(LANE, 0, place, limit=9)
        assert [link.position for link in found] == [each for each in resting if each > place]
        assert chains.memory.reads - before <= reads


@pytest.mark.parametrize(
    ("spans", "portions"),
    [
        ([1] * 250, [100, 100, 50]),
        ([SPANS_TOGETHER - 1, 1, 1], [2, 1]),
        ([1, SPANS_TOGETHER, 1], [1, 1, 1]),
        ([SPANS_TOGETHER // 2] * 5, [2, 2, 1]),
        ([SPANS_TOGETHER + 1, 1], [1, 1]),
    ],
)
def test_runs_are_added_together_up_to_what_a_transaction_takes(spans: list[int], portions: list[int]) -> None:
    inserted, position, runs = list[int](), 0, list[Run]()
    for count in spans:
        one = run(position, position + count, (position, position, count))
        runs.append(replace(one, spans=one.spans * count))
        position += count

    class Counted(MemoryJournals):
        def insert(self, entry: Entry, deadline: Deadline | None = None) -> Entry | None:
            inserted.append(1)
            return super().insert(entry, deadline)

        def insert_all(self, entries: Sequence[Entry]) -> Entry | None:
            inserted.append(len(entries))
            return super().insert_all(entries)

    MemoryChains(by=Counted()).extend(runs)

    assert inserted == portions


def test_the_newest_runs_of_neighbours_come_together_and_none_from_before_a_reset() -> None:
    chains = MemoryChains()
    lanes = [Lane(FLOW, "orders", partition) for partition in range(12)]
    for number in range(6):
        for lane in lanes:  # an entry for each, as of lanes whose batches come apart
            one = run(number, number + 1, (number, number, 1), lane=lane, attempt=f"{number} {lane.partition}")
            chains.prepare([one])
            chains.confirm([one])
    withdrawn = run(6, 7, (6, 6, 1), state="prepared", attempt="withdrawn")
    chains.prepare([withdrawn])
    chains.withdraw([withdrawn])
    chains.reset(reset(6, 6, lane=NEIGHBOUR))
    fresh = run(6, 7, (6, 6, 1), lane=NEIGHBOUR, generation=1)
    chains.prepare([fresh])
    others = chains.beside()
    others.heads(lanes)
    before = chains.memory.reads

    found = others.newest_runs([*lanes, Lane(FLOW, "payments", 0)], limit=5)

    assert chains.memory.reads - before <= 6  # not one for each lane and run
    assert [each.position for each in found[LANE]] == [5, 4, 3, 2, 1]
    assert found[NEIGHBOUR] == [fresh]
    assert found.keys() == set(lanes)


def test_an_environment_that_slept_while_others_wrote_reads_the_end_once() -> None:
    asleep = MemoryChains()
    asleep.prepare([run(0, 10, (0, 0, 10))])
    asleep.beside().prepare([run(n, n + 1, (n, n, 1), lane=NEIGHBOUR) for n in range(300)])
    reads, inserts = asleep.memory.reads, asleep.memory.inserts

    asleep.prepare([run(10, 20, (10, 10, 10))])

    assert (asleep.memory.reads - reads, asleep.memory.inserts - inserts) == (1, 2)


def test_a_read_of_what_others_added_that_fails_leaves_it_to_the_insert() -> None:
    """It is made while a transaction is open, and an error would leave that to its timeout."""
    memory = _MemoryAway()
    chains = MemoryChains(memory)
    chains.prepare([run(0, 10, (0, 0, 10))])
    chains.beside().prepare([run(0, 5, (0, 0, 5), lane=NEIGHBOUR)])
    chains.prepare([run(10, 20, (10, 10, 10))])
    catch_up = chains.catch_up([LANE])
    assert catch_up is not None

    memory.away = True
    catch_up()
    memory.away = False

    chains.prepare([run(20, 30, (20, 20, 10))])
    assert chains.heads([LANE])[LANE].position == 30


class _MemoryAway(MemoryJournals):
    away = False

    def newest(self, after: Mapping[Journal, int], limit: int) -> Mapping[Journal, Sequence[Entry]]:
        """See `Journals.newest`."""
        if self.away:
            raise Retriable("no answer")
        return super().newest(after, limit)


def test_what_is_kept_of_settled_entries_is_bounded_by_their_spans() -> None:
    """A run of a compacted topic has thousands of spans: entries by number would fill a function's memory."""
    search = JournalSearch(MemoryJournals())
    spans = tuple(Span(3 * i, 2 * i, 1) for i in range(2_000))

    for number in range(100):
        search.keep(entry(number, replace(run(number, number + 1), spans=spans)))
    assert len(search._settled) == KEPT // 2_009
    assert search.read(SLICE, {99})[99].number == 99

    huge = replace(run(0, 1), spans=spans * 120)
    search.keep(entry(100, huge))
    assert list(search._settled) == [(SLICE, 100)]


def entry(number: int, link: Run) -> Entry:
    """A committed entry of one link."""
    return Entry(
        journal=SLICE,
        number=number,
        state="committed",
        writer="w",
        attempt=f"attempt-{number}",
        request="",
        settled_at=0,
        examined=False,
        links={0: link},
        previous={0: number - 1},
        heads={},
    )


# Entries in their packed form

OFFSETS = st.integers(0, 2**62)
AT = 1_763_686_800_123


@st.composite
def links(draw: st.DrawFn, partition: int) -> Link:
    """A run with spans and gaps, or a reset."""
    lane, generation, position = Lane(FLOW, "orders", partition), draw(st.integers(0, 2**31)), draw(OFFSETS)
    if draw(st.booleans()):
        to, reason = draw(st.integers(0, 2**31)), draw(st.text())
        return Reset(
            lane=lane,
            generation=generation,
            position=position,
            to_generation=to,
            next=draw(OFFSETS),
            reason=reason,
            at=AT,
        )
    spans, upstream, downstream = [], position, draw(OFFSETS)
    for gap, marker, length in draw(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(1, 9)))):
        spans.append(Span(upstream + gap, downstream + marker, length))
        upstream, downstream = upstream + gap + length, downstream + marker + length
    size = draw(OFFSETS)
    passed = draw(st.none() | st.integers(0, size))  # None: by records
    rule = draw(st.just(b"") | st.binary(min_size=8, max_size=8)) if passed is None else b""
    returned = (
        rows_of(sorted(draw(st.sets(st.integers(position, position + 99))))) if passed is None and not rule else ()
    )
    made = Run(
        lane=lane,
        generation=generation,
        position=position,
        next=upstream + draw(st.integers(0, 9)),
        spans=tuple(spans),
        state="committed",
        writer="writer",
        attempt="attempt",
        fingerprint=draw(st.binary(max_size=8)),
        digest=draw(st.binary(max_size=32)),
        oldest_timestamp=draw(st.integers(-1, 2**42)),
        newest_timestamp=draw(st.integers(-1, 2**42)),
        records=sum(span.length for span in spans),
        bytes=size,
        digest_of="records" if passed is None else "batches",
        passed_bytes=passed or 0,
        quarantined=tuple(sorted(draw(st.sets(st.integers(position, position + 99))))),
        returned=returned,
        rule=rule,
        request="request",
        settled_at=AT,
        examined=draw(st.just(value=True)),
        throttled_ms=4_200,
    )
    in_gaps = [offset for first, following in made.gaps() for offset in range(first, following)]
    return replace(made, filtered=rows_of([offset for offset in in_gaps if draw(st.booleans())])) if rule else made


@given(st.data())
def test_an_entry_is_unpacked_as_it_was_packed(data: st.DataObject) -> None:
    number = data.draw(st.integers(0, 2**40))
    before = st.integers(0, number - 1) if number else st.nothing()
    partitions = data.draw(st.sets(st.integers(16, 31), min_size=1))
    own = data.draw(st.sets(st.sampled_from(sorted(partitions)), min_size=1))
    entry = Entry(
        journal=Journal(FLOW, "orders", 1),
        number=number,
        state="committed",
        writer="writer",
        attempt="attempt",
        request="request",
        settled_at=AT,
        examined=True,
        throttled_ms=4_200,
        links={partition: data.draw(links(partition)) for partition in own},
        previous={partition: data.draw(before | st.just(NO_ENTRY)) for partition in own},
        heads={
            partition: Place(data.draw(OFFSETS), data.draw(OFFSETS), data.draw(before | st.just(NO_ENTRY)))
            for partition in partitions - own
        },
    )

    unpacked = unpack_links(pack_links(entry), replace(entry, links={}, previous={}, heads={}))

    assert (unpacked.links, unpacked.previous) == (entry.links, entry.previous)
    assert unpack_heads(pack_heads(entry), number) == entry.heads
