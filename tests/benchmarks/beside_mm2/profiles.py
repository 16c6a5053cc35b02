"""Sizes of a run: the full one, a quick one, and a smoke test."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from tests.benchmarks.beside_mm2.records import Shape, shape
from tests.benchmarks.beside_mm2.report import Results
from tests.benchmarks.beside_mm2.sides import EXACTLY_ONCE_MODE, EXACTLY_ONCE_TUNED, OURS, Mode

SIZES = {100: 300_000, 1_000: 100_000, 10_000: 12_000}
"""Bytes of a value, and the records of one measurement: some seconds each on two cores."""
PARTITIONS = 6
PULLED_TOPICS = 100
"""Of the cases that the summary speaks of."""


WHOLE_BATCHES = {
    (100, 16_000): 1_200_000,
    (100, 256_000): 2_400_000,
    (1_000, 16_000): 360_000,
    (1_000, 256_000): 600_000,
    (10_000, 16_000): 48_000,
    (10_000, 256_000): 90_000,
}
"""The same of whole batches, which are copied sooner: by bytes of a value, and of a batch before compression."""
REPLICATED = ((1_000, 16_000), (1_000, 256_000))
"""Those that are copied to three replicas too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is measured against one mode of MM2."""

    mode: Mode
    rounds: dict[Shape, int]
    """How often each shape is copied by each side."""
    warm_up: float = 1.0
    """Part of the warm-up's records; with less than all of them they are copied once, warm or not."""
    warm_up_sizes: Collection[int] = frozenset({100, 1_000, 10_000})
    """Of `WARM_UP`."""
    warm_up_batch: int = 0
    """Bytes of a batch of the warm-up, as a shape has them."""

    @property
    def against(self) -> str:
        """The name of the other side."""
        return f"MM2 {self.mode.name}"

    def due(self, results: Results, kind: str) -> list[tuple[int, Shape]]:
        """What was not measured yet: round and shape."""
        return [
            (turn, each)
            for turn in range(1, max(self.rounds.values()) + 1)
            for each, rounds in self.rounds.items()
            if turn <= rounds and not results.has(kind, self.against, each.name, turn, (OURS, self.against))
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What one run measures."""

    name: str
    about: str
    throughput: tuple[Plan, ...] = ()
    latency: Mapping[int, int] = field(default_factory=dict)
    """Rounds by records a second."""
    latency_seconds: float = 8.0
    catch_up: int = 0
    """Rounds."""
    catch_up_records: Shape = field(default_factory=lambda: shape(1_000, 6, 300_000))
    recovery: int = 0
    """Rounds of each fault."""
    quick_start: bool = False
    """Whether Java is to start quickly instead of becoming fast: its figures are of no use."""
    pull: Plan | None = None
    """Of scheduled topics."""
    pull_latency: int = 0
    """Rounds."""
    pass_through: Plan | None = None
    """Of whole batches."""
    pass_through_replicated: Plan | None = None
    """The same, of three replicas each."""
    backfill_gigabytes: float = 0.0
    """Of values in each backlog of the steady state of a backfill."""
    backfill_warm_up: float = 1.0
    """Part of its warm-up's records; with less than all of them they are copied once, warm or not."""


def _whole_batches(part: float = 1.0) -> dict[tuple[int, int], Shape]:
    """Backlogs of whole batches, by bytes of a value and of a batch before compression."""
    return {
        (size, batch): shape(size, PARTITIONS, int(count * part), batch=batch)
        for (size, batch), count in WHOLE_BATCHES.items()
    }


def _full() -> Profile:
    shapes = [shape(size, PARTITIONS, about) for size, about in SIZES.items()]
    # Beside MM2 exactly once, whose CPU of a short copy varies by a third: five rounds of twice as many records of what
    # the summary compares. Three rounds beside its default.
    compared = {shape(size, PARTITIONS, 2 * about): 5 for size, about in SIZES.items()}
    # A hundred topics: as many bytes as one of 1 KB.
    pulled = dict.fromkeys(shapes, 5) | {shape(1_000, PARTITIONS, SIZES[1_000], topics=PULLED_TOPICS): 3}
    whole = _whole_batches()
    return Profile(
        name="full",
        about="five or three alternating rounds of what is compared; half an hour on two idle cores",
        throughput=(
            Plan(mode=EXACTLY_ONCE_TUNED, rounds=compared),
            Plan(mode=EXACTLY_ONCE_MODE, rounds=dict.fromkeys(shapes[:-1], 3)),
        ),
        latency={1_000: 5},
        catch_up=1,
        recovery=1,
        pull=Plan(mode=EXACTLY_ONCE_TUNED, rounds=pulled),
        pull_latency=3,
        pass_through=Plan(mode=EXACTLY_ONCE_TUNED, rounds=dict.fromkeys(whole.values(), 3), warm_up_batch=256_000),
        pass_through_replicated=Plan(
            mode=EXACTLY_ONCE_TUNED,
            rounds={whole[each]: 3 for each in REPLICATED},
            warm_up_sizes=frozenset({1_000}),
            warm_up_batch=256_000,
        ),
        backfill_gigabytes=10.0,
    )


def _part(plan: Plan | None, part: float, rounds: int = 1) -> Plan:
    """Some rounds of a part of the usual records, but for the largest; not warm."""
    assert plan is not None
    small = [each for each in plan.rounds if each.size < max(SIZES)]
    shapes = [replace(each, count=max(1, int(each.per_partition * part)) * each.lanes) for each in small]
    return replace(plan, rounds=dict.fromkeys(shapes, rounds), warm_up=part)


def _quick(full: Profile) -> Profile:
    return replace(
        full,
        name="quick",
        about="two small rounds of everything, about eight minutes: shows that it works, not how fast",
        throughput=tuple(_part(each, 0.2, 2) for each in full.throughput),
        latency={1_000: 2},
        latency_seconds=5.0,
        catch_up_records=shape(1_000, 6, 60_000),
        pull=_part(full.pull, 0.3),
        pull_latency=1,
        pass_through=_part(full.pass_through, 0.1),
        pass_through_replicated=_part(full.pass_through_replicated, 0.1),
        backfill_gigabytes=0.2,
        backfill_warm_up=0.3,
    )


def _smoke() -> Profile:
    return Profile(
        name="smoke",
        about="one tiny measurement: shows that the comparison runs",
        throughput=(Plan(mode=EXACTLY_ONCE_TUNED, rounds={shape(100, 6, 6_000): 1}, warm_up=0.005),),
        quick_start=True,
    )


PROFILES: Mapping[str, Profile] = {each.name: each for each in (_full(), _quick(_full()), _smoke())}
