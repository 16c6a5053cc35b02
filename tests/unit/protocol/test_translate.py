"""Translation agrees with a list of every pair of offsets, whatever chain holds them."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from mirrorless.chain.lane import FlowName, Lane
from mirrorless.chain.lane_state import LaneState, Stop
from mirrorless.protocol.map_reads import MapReads, StopMemory
from mirrorless.protocol.past import Side
from mirrorless.protocol.translate import OffsetMap, Translation
from tests.support.chains import FLOW, LANE, MemoryChains, MemoryLaneStates, reset, run
from tests.support.tries import tries

SEEDS = range(tries(60, many=150))


@dataclass
class Grown:
    """A chain that grew at random, and beside it what really stands where."""

    random: random.Random
    chains: MemoryChains = field(default_factory=MemoryChains)
    pairs: list[tuple[int, int]] = field(default_factory=list)
    """(upstream, downstream) of every record of the newest generation."""
    generation: int = 0
    position: int = 0
    downstream: int = 0

    def grow(self) -> None:
        """One more committed run: records with gaps on both sides, or none at all."""
        start, spans = self.position, []
        self.position += self.random.choice([0, 0, 1, 3, 1000])
        self.downstream += self.random.choice([0, 1, 2])
        for _ in range(self.random.choice([0, 1, 1, 1, 2, 3])):
            length = self.random.randint(1, 4)
            spans.append((self.position, self.downstream, length))
            self.pairs += [(self.position + i, self.downstream + i) for i in range(length)]
            self.position += length + self.random.choice([0, 1, 2])
            self.downstream += length + self.random.choice([1, 0, 2])
        self.position += self.random.choice([0, 0, 1, 2]) if self.position > start else 1
        self.chains.prepare([run(start, self.position, *spans, generation=self.generation)])

    def reset(self) -> None:
        """The operator begins a new generation, perhaps at lower offsets."""
        following = self.random.choice([0, self.position + 5, 7])
        self.chains.reset(reset(self.position, following, generation=self.generation))
        self.generation, self.position, self.pairs = self.generation + 1, following, []

    def prepare(self) -> None:
        """A run in doubt at the end: whether it is part of the map is not decided."""
        link = run(
            self.position,
            self.position + 5,
            (self.position, self.downstream + 1, 5),
            generation=self.generation,
            state="prepared",
        )
        self.chains.prepare([link])


def grown(seed: int) -> Grown:
    chance = random.Random(seed)
    chain = Grown(chance)
    for _ in range(chance.randint(0, 25)):
        chain.grow()
        if chance.random() < 0.05:
            chain.reset()
    if chance.random() < 0.3:
        chain.prepare()
    return chain


def expected_downstream(chain: Grown, birth: int, upstream: int) -> Translation:
    if not chain.pairs:
        return Translation(offset=None, state="no_map")
    exact = dict(chain.pairs)
    later = [down for up, down in chain.pairs if up > upstream]
    if upstream in exact:
        return Translation(offset=exact[upstream], state="exact")
    if later:
        return Translation(offset=later[0], state="next_record" if upstream >= birth else "before_map")
    state = "exact" if upstream <= chain.position else "ahead_of_replication"
    return Translation(offset=chain.pairs[-1][1] + 1, state=state)  # type: ignore[arg-type]  # a literal by way of if


def expected_upstream(chain: Grown, downstream: int) -> Translation:
    if not chain.pairs:
        return Translation(offset=None, state="no_map")
    exact = {down: up for up, down in chain.pairs}
    later = [up for up, down in chain.pairs if down > downstream]
    if downstream in exact:
        return Translation(offset=exact[downstream], state="exact")
    if later:
        state = "next_record" if downstream > chain.pairs[0][1] else "before_map"
        return Translation(offset=later[0], state=state)  # type: ignore[arg-type]  # a literal by way of if
    state = "exact" if downstream <= chain.pairs[-1][1] + 1 else "ahead_of_replication"
    return Translation(offset=chain.position, state=state)  # type: ignore[arg-type]  # same


def interesting(offsets: list[int]) -> list[int]:
    """Every offset of the chain and around it; long gaps by their edges."""
    return sorted({max(0, offset + near) for offset in [0, *offsets] for near in (-2, -1, 0, 1, 2, 3, 500)})


@pytest.mark.parametrize("seed", SEEDS)
def test_every_upstream_offset_translates_to_where_its_record_or_the_next_one_stands(seed: int) -> None:
    chain = grown(seed)
    links = [link for link in chain.chains.of(LANE) if link.generation == chain.generation]
    birth = links[0].position if links else chain.position
    offsets = interesting([up for up, _ in chain.pairs] + [link.position for link in links] + [chain.position])

    for head in (None, chain.chains.heads([LANE])[LANE]):  # a head that was read already changes no answer
        found = {offset: OffsetMap(chain.chains).downstream(LANE, offset, head=head) for offset in offsets}
        assert found == {offset: expected_downstream(chain, birth, offset) for offset in offsets}


@pytest.mark.parametrize("seed", SEEDS)
def test_every_downstream_offset_translates_back(seed: int) -> None:
    chain = grown(seed)
    offsets = interesting([down for _, down in chain.pairs] + [chain.downstream])

    for head in (None, chain.chains.heads([LANE])[LANE]):
        found = {offset: OffsetMap(chain.chains).upstream(LANE, offset, head=head) for offset in offsets}
        assert found == {offset: expected_upstream(chain, offset) for offset in offsets}


def test_what_a_run_in_doubt_covers_lies_ahead_of_replication() -> None:
    """A group must not be sent to the beginning of the topic because the newest run is not yet confirmed."""
    chains = MemoryChains()
    chains.prepare([run(0, 10, (0, 50, 10)), run(10, 20, (10, 61, 10), state="prepared")])

    assert OffsetMap(chains).downstream(LANE, 15) == Translation(offset=60, state="ahead_of_replication")
    assert OffsetMap(chains).upstream(LANE, 65) == Translation(offset=10, state="ahead_of_replication")


def test_an_offset_whose_run_has_expired_is_never_said_to_be_exact() -> None:
    """Links expire in no order, so a chain has holes; a group in one neither jumps to the end nor stays unknown."""
    chains = MemoryChains()
    chains.prepare([run(0, 10, (0, 50, 10)), run(20, 30, (20, 72, 10)), run(30, 40, (30, 83, 10))])

    downstream = [OffsetMap(chains).downstream(LANE, upstream) for upstream in (9, 10, 15, 20)]
    upstream = [OffsetMap(chains).upstream(LANE, downstream) for downstream in (59, 65, 72, 82)]

    assert downstream == [
        Translation(offset=59, state="exact"),
        Translation(offset=72, state="before_map"),
        Translation(offset=72, state="before_map"),
        Translation(offset=72, state="exact"),
    ]
    assert upstream == [
        Translation(offset=9, state="exact"),
        Translation(offset=20, state="before_map"),
        Translation(offset=20, state="exact"),
        Translation(offset=30, state="next_record"),
    ]


@pytest.mark.parametrize(
    ("untrue", "downstream", "upstream"),
    [
        (0, ["map_lost"] * 4, ["map_lost"] * 3),  # the remote topic was made anew
        (
            5,
            ["exact", "map_lost", "map_lost", "map_lost"],
            ["exact", "map_lost", "map_lost"],
        ),  # the source lost it
        (None, ["exact", "exact", "exact", "ahead_of_replication"], ["exact", "exact", "exact"]),  # any other stop
    ],
)
def test_a_lane_whose_stop_says_that_records_are_gone_answers_nothing_from_there_on(
    untrue: int | None, downstream: list[str], upstream: list[str]
) -> None:
    chains, states, beside = MemoryChains(), MemoryLaneStates(), Lane(FLOW, "orders", 1)
    chains.prepare([run(0, 10, (0, 50, 10))])
    chains.prepare([run(0, 10, (0, 50, 10), lane=beside)])
    states.stop(LANE, Stop(reason="broken", upstream_offset=0, detail="", at=1, untrue_from=untrue))
    offset_map = OffsetMap(MapReads(chains=chains, stops=states.read))

    assert [offset_map.downstream(LANE, at).state for at in (4, 5, 10, 12)] == downstream
    assert [offset_map.upstream(LANE, at).state for at in (54, 55, 60)] == upstream
    assert all(offset_map.downstream(LANE, at).offset is None for at in (5, 10) if untrue is not None)
    assert offset_map.downstream(beside, 5).state == "exact"

    chains.reset(reset(10, 0))
    states.resume(LANE)
    assert offset_map.downstream(LANE, 5).state == "no_map"


def test_a_flows_stops_are_read_together_and_again_after_ten_seconds() -> None:
    now, stopped = [100.0], dict[Lane, LaneState]()
    asked: list[FlowName] = []

    class Listing:
        def stopped(self, flow: FlowName) -> dict[Lane, LaneState]:
            asked.append(flow)
            return dict(stopped)

    memory = StopMemory(flow=FLOW, lanes=Listing(), monotonic=lambda: now[0])
    assert [memory.read([LANE]) for _ in range(3)] == [{}] * 3
    stopped[LANE] = LaneState(stop=Stop(reason="broken", upstream_offset=0, detail="", at=1, untrue_from=0))
    now[0] += 9
    assert memory.read([LANE]) == {}
    now[0] += 1
    assert memory.read([LANE, Lane(FLOW, "orders", 1)]) == stopped
    assert asked == [FLOW, FLOW]


@pytest.mark.parametrize("seed", SEEDS)
def test_records_between_two_offsets_are_counted_on_either_side(seed: int) -> None:
    chain = grown(seed)
    offset_map, lane_head = OffsetMap(chain.chains), chain.chains.heads([LANE])[LANE]
    sides: dict[Side, list[int]] = {
        "upstream": [up for up, _ in chain.pairs],
        "downstream": [down for _, down in chain.pairs],
    }
    for side, there in sides.items():
        offsets = interesting(there)
        for first, end in [(chain.random.choice(offsets), chain.random.choice(offsets)) for _ in range(30)]:
            found = offset_map.records_between(LANE, first, end, side, head=chain.random.choice([None, lane_head]))

            assert found == sum(first <= offset < end for offset in there), (side, first, end)


def test_behind_the_last_marker_is_the_end_once_nothing_is_undecided() -> None:
    """Records at 50 to 59, a marker at 60: a read_committed consumer that has read everything stands at 61."""
    chains = MemoryChains()
    chains.prepare([run(0, 10, (0, 50, 10))])
    offset_map = OffsetMap(chains)

    assert offset_map.upstream(LANE, 61) == Translation(offset=10, state="ahead_of_replication")
    assert offset_map.upstream(LANE, 61, stable_end=61) == Translation(offset=10, state="exact")
    assert offset_map.upstream(LANE, 62, stable_end=61) == Translation(offset=10, state="ahead_of_replication")

    chains.prepare([run(10, 12, (10, 61, 2), state="prepared")])
    assert offset_map.upstream(LANE, 64, stable_end=64) == Translation(offset=10, state="ahead_of_replication")


@pytest.mark.parametrize("distance", [0, 4])
def test_an_offset_in_the_newest_run_is_translated_without_a_read(distance: int) -> None:
    """Groups that keep up stand there, and a round translates for each of them."""
    chains = MemoryChains()
    chains.prepare([run(0, 100, (0, 0, 100)), run(100, 110, (100, 101, 10))])
    head = chains.heads([LANE])[LANE]
    before = chains.reads

    assert OffsetMap(chains).downstream(LANE, 100 + distance, head=head) == Translation(
        offset=101 + distance, state="exact"
    )
    assert OffsetMap(chains).upstream(LANE, 101 + distance, head=head) == Translation(
        offset=100 + distance, state="exact"
    )
    assert chains.reads == before


@pytest.mark.parametrize("empty", range(3, 40))
def test_the_first_run_with_a_record_is_found_behind_one_without(empty: int) -> None:
    chains = MemoryChains()
    chains.prepare(
        [run(0, empty), run(empty, empty + 1, (empty, 10, 1)), run(empty + 1, 2 * empty - 1, (empty + 1, 12, 1))]
    )

    assert OffsetMap(chains).upstream(LANE, 10) == Translation(offset=empty, state="exact")
