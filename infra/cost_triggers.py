"""The cheapest trigger by rate, number of topics and latency, beside the others, as tables of the page of costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from mirrorless.cost.assumptions import ReplicationLoad
from mirrorless.cost.replication import msk_connect, msk_replicator
from mirrorless.planning.options import Goal, Option, by_mappings, by_schedule
from mirrorless.reports.report import Cell, Table

RATES: Final = (1.0, 10.0, 100.0)
"""MB/s."""

TOPICS: Final = (1, 10, 100, 1_000)

LATENCIES: Final = (1, 5, 60)
"""Seconds, at the 99th percentile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerCell:
    """One workload at one latency: the options that keep it, and the others' prices."""

    load: ReplicationLoad
    latency: int
    options: dict[str, Option | None]
    """By trigger; None where it does not keep the latency."""
    replicator: float
    connect: float

    @property
    def cheapest(self) -> tuple[str, Option]:
        """The trigger that costs least; mappings keep every latency here."""
        kept = {name: option for name, option in self.options.items() if option is not None}
        return min(kept.items(), key=lambda each: each[1].dollars)

    @property
    def dollars(self) -> float:
        """A month, by the cheapest trigger."""
        return self.cheapest[1].dollars


@cache
def cells() -> tuple[TriggerCell, ...]:
    """All of them, by latency. Each is a search over settings: together a second of CPU."""
    return tuple(trigger_cell(rate, topics, latency) for latency in LATENCIES for rate in RATES for topics in TOPICS)


def trigger_cell(mb_per_second: float, topics: int, latency: int) -> TriggerCell:
    """One of them; topics have six partitions, and records 1,000 bytes."""
    load, goal = ReplicationLoad(mb_per_second=mb_per_second, topics=topics), Goal(latency=latency)
    options = {
        "mappings, on demand": by_mappings([load], "on-demand", goal),
        "mappings, provisioned": by_mappings([load], "provisioned", goal),
        "schedule, continuous": by_schedule([load], goal, continuous=True),
        "schedule, by interval": by_schedule([load], goal, continuous=False),
    }
    return TriggerCell(
        load=load,
        latency=latency,
        options={name: option if option is not None and option.meets else None for name, option in options.items()},
        replicator=msk_replicator(load),
        connect=msk_connect(load),
    )


def dearer() -> tuple[str, ...]:
    """One sentence for each of the others: where Mirrorless costs more than it."""
    found = cells()
    return (
        _dearer("MSK Replicator", found, lambda cell: cell.replicator),
        _dearer("MirrorMaker 2 on MSK Connect", found, lambda cell: cell.connect),
    )


def _dearer(name: str, found: Sequence[TriggerCell], other: Callable[[TriggerCell], float]) -> str:
    places = []
    for latency in LATENCIES:
        at = [
            f"{cell.load.mb_per_second:g} MB/s in {cell.load.topics:,} topics ({cell.dollars:,.0f}, {other(cell):,.0f})"
            for cell in found
            if cell.latency == latency and cell.dollars > other(cell)
        ]
        if at:
            places.append(f"within {latency} s at {', '.join(at)}")
    if not places:
        return f"Mirrorless costs less than {name} in all cases of the next tables."
    return (
        f"**Mirrorless costs more than {name}** (dollars a month of each): {'; '.join(places)}; and less in all others."
    )


def trigger_tables() -> tuple[Table, ...]:
    """A table for each latency."""
    found = cells()
    return tuple(_table(latency, [cell for cell in found if cell.latency == latency]) for latency in LATENCIES)


def _table(latency: int, found: list[TriggerCell]) -> Table:
    names = tuple(found[0].options)
    rows: list[tuple[Cell, ...]] = []
    for cell in found:
        name, option = cell.cheapest
        prices = ("-" if each is None else round(each.dollars) for each in cell.options.values())
        rows.append(
            (
                cell.load.mb_per_second,
                cell.load.topics,
                round(cell.dollars),
                f"{name}: {_settings(option)}",
                *prices,
                round(cell.replicator),
                round(cell.connect),
            )
        )
    return Table(
        title=f"The cheapest trigger within {latency} s: dollars a month",
        columns=("MB/s", "topics", "cheapest", "by", *names, "MSK Replicator", "MSK Connect, MM2 tuned"),
        rows=tuple(rows),
        note=(
            "At the 99th percentile, everything counted but what stands apart below. A dash: too slow. Settings are "
            "those that cost least: a mapping's window is half a second or whole seconds, a continuous run's some "
            "times 50 ms; shards, memory; checkpoints as often as the latency says, at most every 2 s and at least "
            "once a minute. The CPU of schedules is measured, on a busy machine. Neither of the others states a "
            "latency, and MM2's price is that of its CPU, however many partitions it has. Plan a flow of your own by "
            "`mirrorless plan`."
            if latency == LATENCIES[0]
            else ""
        ),
    )


def _settings(option: Option) -> str:
    if option.pull is not None:
        pace = f"window {option.pull.seconds:g} s" if option.pull.continuous else f"each {option.pull.seconds:g} s"
        return f"{pace}, {option.pull.shards} x {option.pull.memory_mb} MB"
    return f"window {option.mapping.window.seconds:g} s" if option.mapping is not None else ""
