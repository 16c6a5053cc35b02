"""The chains in memory and those in DynamoDB behave alike: what is tried on the one holds on the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from threading import Barrier, Thread
from typing import Any

import pytest

from mirrorless.adapters.dynamodb.chains import DynamoDbChains, DynamoDbJournals, parse_lane
from mirrorless.chain.entry import Journal
from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import NEW_LANE, Head
from mirrorless.chain.run import Run
from mirrorless.errors import ChainBroken, LostRace
from mirrorless.ports.stores import Chains
from mirrorless.protocol.positions import Positions
from tests.support.chains import FLOW, LANE, NOW, MemoryChains, MemoryLaneStates, reset, run
from tests.support.clusters import MemoryCluster, MemoryTarget
from tests.support.metered import MeteredClient

OTHER = Lane(FLOW, "orders-eu", 12)


def prepared(position: int, following: int, *spans: tuple[int, int, int], attempt: str = "", lane: Lane = LANE) -> Run:
    return run(position, following, *spans, state="prepared", attempt=attempt, lane=lane)


def head(chains: Chains, lane: Lane = LANE) -> Head:
    return chains.heads([lane])[lane]


def test_a_lane_without_links_is_new(chains: Chains) -> None:
    assert chains.heads([LANE, OTHER]) == {LANE: NEW_LANE, OTHER: NEW_LANE}
    assert chains.at_or_before(LANE, 0, 5) is None
    assert chains.after(LANE, 0, -1, limit=5) == []


@pytest.mark.parametrize(
    "link",
    [
        prepared(0, 10, (0, 50, 10)),
        prepared(0, 10, (2, 50, 3), (7, 60, 1)),
        prepared(0, 2**40, (2**40 - 1, 2**41, 1)),
        run(0, 10, (0, 50, 10)),
        replace(run(0, 3, (0, 50, 1), (2, 51, 1), quarantined=(1,)), request=""),
        run(0, 2, quarantined=(0, 1)),  # empty bytes, no span: a function has passed nothing but what was ordered out
    ],
)
def test_a_run_is_read_back_as_it_was_written(chains: Chains, link: Run) -> None:
    chains.prepare([link])

    assert head(chains).run == link


def test_a_prepared_run_moves_the_position_only_when_it_is_confirmed(chains: Chains) -> None:
    link = prepared(0, 10, (0, 50, 10))

    chains.prepare([link])
    assert head(chains) == Head(generation=0, position=0, run=link)

    chains.confirm([link])
    chains.confirm([link])
    assert head(chains) == Head(generation=0, position=10, run=link.committed())


def test_a_key_is_taken_once(chains: Chains) -> None:
    first = prepared(0, 10, (0, 50, 10), attempt="first")
    chains.prepare([first])

    with pytest.raises(LostRace, match=r"orders-0 @ 0"):
        chains.prepare([prepared(0, 7, (0, 70, 7), attempt="second")])

    assert head(chains).run == first


@pytest.mark.parametrize("lanes", [2, 25, 26, 60])
def test_a_race_lost_on_one_lane_leaves_the_other_lanes_to_be_withdrawn(chains: Chains, lanes: int) -> None:
    """Inserts are not all or nothing; what was inserted is ours to take back, and the rival's is not."""
    places = [Lane(FLOW, "orders", partition) for partition in range(lanes)]
    rival = prepared(0, 5, (0, 1, 5), attempt="rival", lane=places[-1])
    chains.prepare([rival])
    own = [prepared(0, 9, (0, 2, 9), attempt="own", lane=lane) for lane in places]

    with pytest.raises(LostRace):
        chains.prepare(own)
    chains.withdraw(own)

    assert chains.heads(places) == dict.fromkeys(places[:-1], NEW_LANE) | {
        places[-1]: Head(generation=0, position=0, run=rival)
    }


def test_of_many_rivals_at_one_key_exactly_one_wins(chains: Chains) -> None:
    start, results = Barrier(8), []

    def race(name: str) -> None:
        start.wait(10)
        try:
            chains.prepare([prepared(0, 5, (0, 1, 5), attempt=name)])
        except LostRace:
            return
        results.append(name)

    threads = [Thread(target=race, args=(f"rival-{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    stored = head(chains).run
    assert stored is not None
    assert results == [stored.attempt]


def test_a_committed_run_is_never_withdrawn(chains: Chains) -> None:
    link = prepared(0, 10, (0, 50, 10))
    chains.prepare([link])
    chains.confirm([link])

    chains.withdraw([link])

    assert head(chains).run == link.committed()


def test_what_another_attempt_prepared_is_neither_confirmed_nor_withdrawn(chains: Chains) -> None:
    stored, stale = prepared(0, 10, (0, 50, 10), attempt="stored"), prepared(0, 10, (0, 50, 10), attempt="stale")
    chains.prepare([stored])

    chains.withdraw([stale])
    with pytest.raises(ChainBroken, match=r"orders-0 @ 0"):
        chains.confirm([stale])

    assert head(chains).run == stored


def test_a_run_that_is_gone_cannot_be_confirmed_and_need_not_be_withdrawn(chains: Chains) -> None:
    gone = prepared(0, 10, (0, 50, 10))

    chains.withdraw([gone])
    with pytest.raises(ChainBroken):
        chains.confirm([gone])

    assert head(chains) == NEW_LANE


def test_a_reset_collides_with_whoever_remembers_the_old_position(chains: Chains) -> None:
    chains.prepare([run(0, 10, (0, 50, 10))])

    chains.reset(reset(10, 3))

    assert head(chains) == Head(generation=1, position=3, run=None)
    with pytest.raises(LostRace):
        chains.prepare([prepared(10, 12, (10, 60, 2))])
    with pytest.raises(LostRace):
        chains.reset(reset(10, 0))
    chains.prepare([run(3, 5, (3, 61, 2), generation=1)])
    assert head(chains).position == 5


def test_links_are_found_by_position_within_their_generation_and_lane(chains: Chains) -> None:
    """Positions of one, two and more digits: the order of the keys must be that of the numbers."""
    ends = [2, 9, 10, 11, 100, 1000, 10**12]
    links = [run(start, end, (start, start + 7, 1)) for start, end in zip([0, *ends], ends, strict=False)]
    chains.prepare(links)
    chains.prepare([run(5, 6, (5, 1, 1), lane=OTHER)])
    chains.reset(reset(10**12, 0))
    chains.prepare([run(0, 4, (0, 9, 4), generation=1)])

    for offset in (0, 1, 2, 8, 9, 10, 11, 99, 100, 101, 999, 1000, 10**12 - 1):
        expected = next(link for link in links if link.position <= offset < link.next)
        assert chains.at_or_before(LANE, 0, offset) == expected
    assert chains.at_or_before(LANE, 0, 2**63 - 1) == reset(10**12, 0)
    assert chains.after(LANE, 0, 9, limit=3) == links[3:6]
    assert chains.after(LANE, 0, -1, limit=100) == [*links, reset(10**12, 0)]
    assert chains.after(LANE, 1, -1, limit=100) == [run(0, 4, (0, 9, 4), generation=1)]
    assert chains.at_or_before(OTHER, 0, 4) is None


def beside(chains: Chains, client: Any = None) -> Any:
    """The chains of another environment, which remembers nothing. Args: client: in place of DynamoDB's own."""
    if isinstance(chains, MemoryChains):
        return chains.beside()
    assert isinstance(chains, DynamoDbChains)
    journals = chains.journals
    assert isinstance(journals, DynamoDbJournals)
    return DynamoDbChains(client or journals._client, journals._table, clock=lambda: NOW)


def counted(chains: Chains) -> tuple[Chains, Callable[[], int]]:
    """The chains of another environment, and how often it has read the store so far."""
    if isinstance(chains, MemoryChains):
        return chains.beside(), lambda: chains.reads
    client = MeteredClient(beside(chains).journals._client)
    return beside(chains, client), lambda: client.reads


def test_a_group_moved_back_over_many_runs_reads_their_links_in_pages(chains: Chains) -> None:
    """A read for each link took the event beyond its deadline, on every delivery again."""
    before = [run(position, position + 1, (position, position, 1)) for position in range(100)]
    skipped = reset(100, 150)
    behind = [run(position, position + 1, (position, position, 1), generation=1) for position in range(150, 400)]
    chains.prepare(before)
    chains.reset(skipped)
    chains.prepare(behind)
    cold, reads = counted(chains)
    positions = Positions(
        chains=cold, states=MemoryLaneStates(), target=MemoryTarget(MemoryCluster(), "warm"), clock=lambda: 0
    )
    positions.load([LANE], lambda topic: f"us-east.{topic}", lambda: 30.0)
    already = reads()

    links = positions.links_over(LANE, 0, 398)

    assert links == [*before, skipped, *behind[:-1]]
    assert reads() - already <= 30  # twice the binary digits of 350 to find the place, and pages of 100 at most


def test_the_end_of_a_chain_is_renewed_and_stays_what_it_is(chains: Chains) -> None:
    links = [run(0, 10, (0, 50, 10)), run(10, 20, (10, 60, 10)), run(20, 21, quarantined=(20,))]
    beside_it = run(0, 3, (0, 7, 3), lane=Lane(FLOW, "orders", 3), attempt="beside")
    chains.prepare([*links[:1], beside_it, *links[1:]])
    settled = links[0].settled_at

    assert chains.renew([LANE], settled_before=settled, expires_at=1_800_000_000) == 0
    assert set(expiries(chains).values()) == {settled // 1000 + 30 * 86_400}
    assert chains.renew([LANE], settled_before=settled + 1, expires_at=1_800_000_000) == 3

    # The newest entry, the neighbour's newest, and the lane's last with records; not the one before.
    assert [number for number, at in sorted(expiries(chains).items()) if at == 1_800_000_000] == [1, 2, 3]
    assert beside(chains).after(LANE, 0, -1, limit=10) == links


def test_a_run_in_doubt_never_expires_and_is_not_renewed(chains: Chains) -> None:
    chains.prepare([prepared(0, 10, (0, 50, 10))])
    assert expiries(chains) == {}

    chains.renew([LANE], settled_before=2**60, expires_at=1_800_000_000)
    assert expiries(chains) == {}


def test_an_entry_expires_no_earlier_than_the_one_below_whatever_its_writers_clock_says(chains: Chains) -> None:
    """An operator's reset may come from a machine whose clock is years behind."""
    first = run(0, 10, (0, 50, 10))
    chains.prepare([first])
    late = replace(prepared(3, 4, (3, 70, 1)), generation=1, settled_at=5)

    chains.reset(replace(reset(10, 3), at=1))
    chains.prepare([late])
    chains.confirm([late])

    assert set(expiries(chains).values()) == {first.settled_at // 1000 + 30 * 86_400}
    assert len(expiries(chains)) == 3


def test_a_renewal_does_not_shorten_a_life(chains: Chains) -> None:
    chains.prepare([run(0, 10, (0, 50, 10))])

    chains.renew([LANE], settled_before=2**60, expires_at=1_800_000_000)
    chains.renew([LANE], settled_before=2**60, expires_at=1_790_000_000)

    assert set(expiries(chains).values()) == {1_800_000_000}


def expiries(chains: Chains) -> dict[int, int]:
    """When the entries of the first journal expire, by number; without those that do not."""
    if isinstance(chains, MemoryChains):
        return {e.number: e.expires_at for e in chains.memory.of(Journal.of(LANE)) if e.expires_at is not None}
    journals = beside(chains).journals
    items = journals._client.scan(TableName=journals._table, ConsistentRead=True)["Items"]
    return {int(item["number"]["N"]): int(item["expires_at"]["N"]) for item in items if "expires_at" in item}


# Neighbours in one journal


NEIGHBOUR = Lane(FLOW, "orders", 1)


def test_neighbours_of_one_attempt_share_their_fate(chains: Chains) -> None:
    own, next_to_it = (prepared(0, 10, (0, 50, 10), attempt="one", lane=lane) for lane in (LANE, NEIGHBOUR))
    chains.prepare([own, next_to_it])

    beside(chains).confirm([own])

    assert [head.run for head in chains.heads([LANE, NEIGHBOUR]).values()] == [own.committed(), next_to_it.committed()]


def test_environments_with_other_lanes_of_a_journal_are_no_rivals(chains: Chains) -> None:
    other = beside(chains)
    chains.prepare([run(0, 10, (0, 50, 10))])
    other.prepare([run(0, 5, (0, 60, 5), lane=NEIGHBOUR)])

    chains.prepare([prepared(10, 12, (10, 60, 2))])
    other.prepare([prepared(5, 9, (5, 65, 4), lane=NEIGHBOUR)])

    cold = beside(chains)
    assert {lane: each.position for lane, each in cold.heads([LANE, NEIGHBOUR]).items()} == {LANE: 10, NEIGHBOUR: 5}
    assert [link.position for link in cold.after(NEIGHBOUR, 0, -1, limit=9)] == [0, 5]


def test_an_environment_that_met_others_reads_what_they_added_before_it_inserts(chains: Chains) -> None:
    other, reads = counted(chains)
    other.prepare([run(0, 1, (0, 60, 1), lane=NEIGHBOUR)])
    assert other.catch_up([NEIGHBOUR]) is None
    chains.prepare([run(0, 10, (0, 50, 10))])
    other.prepare([run(1, 5, (1, 61, 4), lane=NEIGHBOUR)])
    catch_up = other.catch_up([NEIGHBOUR])
    assert catch_up is not None
    catch_up()
    assert other.catch_up([NEIGHBOUR]) is None  # nobody was met since

    chains.prepare([run(10, 12, (10, 60, 2))])
    other.prepare([run(5, 9, (5, 65, 4), lane=NEIGHBOUR)])
    before, again = reads(), other.catch_up([NEIGHBOUR])
    assert again is not None
    again()
    assert reads() == before + 1

    chains.prepare([run(12, 14, (12, 62, 2))])
    other.prepare([run(9, 10, (9, 69, 1), lane=NEIGHBOUR)])
    chains.prepare([run(14, 15, (14, 64, 1))])
    added = other.catch_up([NEIGHBOUR])
    assert added is not None
    added()
    assert other.catch_up([NEIGHBOUR]) is not None  # who adds once may add again


def test_what_others_added_is_found_behind_an_end_that_is_remembered(chains: Chains) -> None:
    links = [run(0, 10, (0, 50, 10)), run(10, 15, (10, 60, 5)), run(15, 17, (15, 65, 2))]
    chains.prepare(links[:1])

    beside(chains).prepare(links[1:2])
    assert chains.at_or_before(LANE, 0, 12) == links[1]
    beside(chains).prepare(links[2:])
    assert chains.after(LANE, 0, -1, limit=9) == links


def test_a_position_that_others_withdrew_and_wrote_anew_is_read_anew(chains: Chains) -> None:
    lost, second, other = prepared(0, 10, (0, 50, 10)), run(0, 5, (0, 70, 5), attempt="second"), beside(chains)
    chains.prepare([lost])

    other.withdraw([lost])
    other.prepare([second])

    assert chains.at_or_before(LANE, 0, 0) == second


def test_a_run_over_which_its_lane_was_reset_is_confirmed_by_whoever_finds_it_committed(chains: Chains) -> None:
    own = prepared(0, 10, (0, 50, 10))
    chains.prepare([own])
    beside(chains).reset(reset(0, 40), own)

    beside(chains).confirm([own])

    assert beside(chains).after(LANE, 0, -1, limit=9) == [own.committed(), reset(0, 40)]


def test_a_reset_over_a_run_is_no_link_behind_that_run(chains: Chains) -> None:
    own = prepared(0, 10, (0, 50, 10))
    chains.prepare([own])
    assert chains.after(LANE, 0, -1, limit=9) == [own]

    beside(chains).reset(reset(0, 40), own)

    assert chains.after(LANE, 0, 0, limit=9) == []


def test_an_attempt_has_all_its_runs_but_those_over_which_lanes_were_reset(chains: Chains) -> None:
    own, next_to_it = (prepared(0, 10, (0, 50, 10), attempt="one", lane=lane) for lane in (LANE, NEIGHBOUR))
    elsewhere = prepared(0, 3, (0, 5, 3), attempt="gone", lane=OTHER)
    chains.prepare([own, next_to_it])
    assert beside(chains).of_attempts([elsewhere, next_to_it]) == [elsewhere, next_to_it, own]

    beside(chains).reset(reset(0, 40), own)

    assert beside(chains).of_attempts([elsewhere, next_to_it]) == [elsewhere, next_to_it]


def test_the_head_of_a_lane_that_is_being_written_costs_one_read(chains: Chains) -> None:
    chains.prepare([prepared(0, 10, (0, 50, 10))])
    cold, reads = counted(chains)
    before = reads()

    assert cold.heads([LANE])[LANE].in_doubt
    assert reads() == before + 1


def test_more_entries_than_one_call_reads_are_read_by_number(chains: Chains) -> None:
    chains.prepare([run(position, position + 1, (position, position, 1)) for position in range(130)])

    found = beside(chains).journals.read(Journal.of(LANE), {0, 129, *range(10, 120), 500})

    assert sorted(found) == [0, *range(10, 120), 129]
    assert all(entry.links[0].position == number for number, entry in found.items())


def test_an_idle_lane_is_found_behind_hundreds_of_entries_of_its_neighbours(chains: Chains) -> None:
    count = 300
    idle = [run(0, 5, (0, 60, 5), lane=NEIGHBOUR), run(5, 9, (5, 65, 4), lane=NEIGHBOUR)]
    busy = [run(position, position + 1, (position, position, 1)) for position in range(count)]
    chains.prepare([idle[0], *busy, idle[1], run(count, count + 1, (count, count, 1))])
    cold, reads = counted(chains)
    before = reads()

    assert cold.heads([NEIGHBOUR])[NEIGHBOUR].run == idle[1]
    assert cold.at_or_before(NEIGHBOUR, 0, 4) == idle[0]
    assert cold.after(NEIGHBOUR, 0, 0, limit=1) == [idle[1]]
    assert cold.at_or_before(LANE, 0, count // 3) == busy[count // 3]
    assert reads() - before <= 30


def test_a_withdrawn_run_is_no_part_of_the_chain_and_its_position_is_free(chains: Chains) -> None:
    first, lost, third = (
        run(0, 10, (0, 50, 10)),
        prepared(10, 20, (10, 70, 10), attempt="lost"),
        run(10, 15, (10, 90, 5), attempt="third"),
    )
    chains.prepare([first, lost])
    chains.withdraw([lost])
    assert head(chains).run == first

    chains.prepare([third])

    cold = beside(chains)
    assert cold.after(LANE, 0, -1, limit=9) == [first, third]
    assert cold.at_or_before(LANE, 0, 12) == third
    assert cold.at_or_before(LANE, 0, 9) == first


def test_a_reset_over_a_run_in_doubt_leaves_its_neighbours_undecided(chains: Chains) -> None:
    own, next_to_it = (prepared(0, 10, (0, 50, 10), attempt="one", lane=lane) for lane in (LANE, NEIGHBOUR))
    chains.prepare([own, next_to_it])

    with pytest.raises(LostRace):
        beside(chains).reset(reset(0, 40))  # its operator saw no doubt
    with pytest.raises(LostRace):
        beside(chains).reset(reset(0, 40), replace(own, attempt="another"))
    beside(chains).reset(reset(0, 40), own)

    assert head(chains) == Head(generation=1, position=40)
    assert beside(chains).after(LANE, 0, -1, limit=1) == [reset(0, 40)]
    assert head(chains, NEIGHBOUR).run == next_to_it
    chains.confirm([own, next_to_it])  # late: the zombie's transaction was committed all the same
    cold = beside(chains)
    assert head(cold) == Head(generation=1, position=40)
    assert head(cold, NEIGHBOUR).run == next_to_it.committed()
    assert cold.after(LANE, 0, -1, limit=1) == [own.committed(), reset(0, 40)]
    cold.prepare([run(40, 41, (40, 99, 1), generation=1)])
    assert head(chains).position == 41


def test_many_runs_and_gaps_are_read_back(chains: Chains) -> None:
    """An entry beyond what one page of DynamoDB's answer holds is packed."""
    spans = [(3 * i, 2 * i + 7, 2) for i in range(5_000)]
    lanes = [Lane(FLOW, "orders", partition) for partition in range(16)]
    written = [prepared(0, 15_000, *spans, attempt="one", lane=lane) for lane in lanes]

    chains.prepare(written)

    assert [each.run for each in beside(chains).heads(lanes).values()] == written


@pytest.mark.parametrize("lane", [LANE, OTHER, Lane(FLOW, "a-b-0", 3), Lane(FLOW, "a.b_c", 0)])
def test_a_lanes_name_is_read_back_as_the_lane(lane: Lane) -> None:
    assert parse_lane(str(lane)) == lane


def test_many_runs_of_a_lane_are_added_in_order_behind_what_a_neighbour_added_meanwhile(chains: Chains) -> None:
    neighbour = Lane(FLOW, LANE.topic, LANE.partition + 1)
    chains.prepare([run(0, 10, (0, 50, 10))])
    beside(chains).prepare([run(0, 10, (0, 50, 10), lane=neighbour, attempt="beside")])
    many = [run(at, at + 10, (at, at + 100, 10)) for at in range(10, 1_510, 10)]

    chains.extend(many)

    assert head(beside(chains)) == Head(generation=0, position=1_510, run=many[-1])
    assert beside(chains).after(LANE, 0, 0, limit=500) == many
    assert head(beside(chains), neighbour).position == 10


def test_entries_whose_insert_was_not_answered_are_found_and_those_of_a_rival_are_returned(chains: Any) -> None:
    chains.extend([run(at, at + 10, (at, at + 100, 10)) for at in range(0, 50, 10)])
    journals = beside(chains).journals
    entries = journals.after(Journal.of(LANE), -1, limit=10)

    assert [each.previous[LANE.partition] for each in entries] == [-1, 0, 1, 2, 3]
    assert journals.insert_all(entries) is None
    assert journals.insert_all([replace(each, attempt=f"mine {each.number}") for each in entries]) == entries[0]
    with pytest.raises(LostRace, match="a part of these"):
        journals.insert_all([*entries, replace(entries[-1], number=5)])
    assert journals.after(Journal.of(LANE), -1, limit=10) == entries


def test_no_run_is_added_where_a_rival_has_continued_the_lane(chains: Chains) -> None:
    chains.prepare([run(0, 10, (0, 50, 10))])
    rival = run(10, 17, (10, 60, 7), attempt="rival")
    beside(chains).prepare([rival])

    with pytest.raises(LostRace):
        chains.extend([run(10, 20, (10, 60, 10)), run(20, 30, (20, 70, 10))])

    assert beside(chains).after(LANE, 0, 0, limit=500) == [rival]
