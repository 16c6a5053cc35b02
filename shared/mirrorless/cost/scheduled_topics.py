"""The monthly cost of scheduled topics: runs, entries and reads of the offset map, logs and metrics."""

from __future__ import annotations

from collections.abc import Sequence

from mirrorless.cost.assumptions import Assumptions, ReplicationLoad
from mirrorless.cost.prices import PRICES
from mirrorless.cost.pull import (
    ShardSettings,
    followed_lanes,
    gathers_of_round,
    pull_round,
    start_seconds,
    starts_cold,
    topic_round,
)
from mirrorless.cost.replication import ARCHITECTURE, SECONDS, observation, state_reads, together, written

STARTS_SECONDS = 60
"""Between two starts by the schedule of a continuous shard; most find that it is held, and end."""

_DEFAULTS = Assumptions()


def pulled(
    loads: Sequence[ReplicationLoad], pull: ShardSettings, assumptions: Assumptions = _DEFAULTS
) -> dict[str, float]:
    """Dollars a month by part of scheduled topics, beside what their flow costs by itself."""
    busy = pull_round(loads, pull, assumptions)
    runs = pull.shards / (STARTS_SECONDS if pull.continuous else pull.seconds)
    # Functions that are there, on average; a continuous run's successor warms up beside it.
    at_work = (
        pull.shards * (1 + assumptions.pull_cold_seconds / assumptions.pull_run_seconds)
        if pull.continuous
        else runs * busy.seconds
    )
    paid = runs * start_seconds(pull, assumptions) + at_work
    writes = runs * assumptions.pull_run_writes + at_work / assumptions.pull_lease_seconds
    lines = at_work / assumptions.log_line_seconds + (0.0 if pull.continuous else runs)
    costs = {
        "functions: time": paid * pull.memory_gb * SECONDS * PRICES.lambda_gb_second[ARCHITECTURE],
        "functions: calls": runs * SECONDS * (PRICES.lambda_request + PRICES.scheduler_call),
        "offset map: writes": writes * SECONDS * PRICES.dynamodb_write_unit * (1 + assumptions.copies),
        "offset map: reads": _reads(loads, pull, assumptions) * SECONDS * PRICES.dynamodb_read_unit
        + _state_reads(loads, pull, assumptions),
        "metrics, alarms, logs": observation(
            metrics=assumptions.pull_metrics,
            alarms=assumptions.pull_alarms,
            log_bytes=SECONDS * (runs * assumptions.pull_run_log_bytes + lines * assumptions.log_line_bytes),
        ),
    }
    gathers = gathers_of_round(loads, pull, assumptions)
    return together(costs, *(_entries(load, gathers, pull, assumptions) for load in loads))


def pulled_alone(
    load: ReplicationLoad, loads: Sequence[ReplicationLoad], pull: ShardSettings, assumptions: Assumptions = _DEFAULTS
) -> float:
    """Dollars a month of what like topics, among all that are scheduled, add to runs that are paid for anyway."""
    entries = _entries(load, gathers_of_round(loads, pull, assumptions), pull, assumptions)
    return sum(entries.values()) + _state_reads([load], pull, assumptions)


def _entries(load: ReplicationLoad, gathers: float, pull: ShardSettings, assumptions: Assumptions) -> dict[str, float]:
    """Dollars a month of like topics' entries in the offset map."""
    part = topic_round(load, gathers, pull, assumptions)
    if not part.entries:
        return {}
    return written(load.topics * part.entries / pull.seconds, part.lanes / part.entries, load, assumptions)


def _state_reads(loads: Sequence[ReplicationLoad], pull: ShardSettings, assumptions: Assumptions) -> float:
    """Dollars a month of the states of lanes that move: once a minute, or once a run where runs are rarer."""
    return state_reads(loads, assumptions) * min(1.0, 60 / pull.seconds)


def _reads(loads: Sequence[ReplicationLoad], pull: ShardSettings, assumptions: Assumptions) -> float:
    """Read units a second: all positions and states in a new environment, and those of silent lanes again and again."""
    slices = silent_slices = silent = lanes = 0.0
    for load in loads:
        moving = followed_lanes(load, assumptions)
        lanes += load.topics * load.partitions
        slices += load.topics * load.slices_per_topic
        silent += load.topics * (load.partitions - moving)
        silent_slices += load.topics * max(0.0, load.slices_per_topic - moving)
    anew = slices * assumptions.pull_cold_reads + lanes * assumptions.state_reads
    if starts_cold(pull, assumptions):
        return anew / pull.seconds
    again = (silent_slices + silent * assumptions.state_reads) / assumptions.pull_positions_seconds
    return again + (anew / assumptions.pull_run_seconds if pull.continuous else 0.0)
