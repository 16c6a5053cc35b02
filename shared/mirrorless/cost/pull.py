"""Load and latency of scheduled topics: what a shard reads and writes in a round, and whether it can.

A *round* is one pass of a shard over its lanes: a run of an interval, or one window of a continuous run. What has come
is *gathered*, up to some MB, and written in transactions of some lanes each, one after the other. Neighbours that share
a slice are on one shard and in one transaction, so far as their records were gathered together.

The monthly cost of scheduled topics: runs, entries and reads of the offset map, logs and metrics.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, log, sqrt

from mirrorless.cost.assumptions import Assumptions, ReplicationLoad
from mirrorless.cost.prices import PRICES
from mirrorless.cost.replication import ARCHITECTURE, SECONDS, cpu_share, observation, state_reads, together, written

_DEFAULTS = Assumptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSettings:
    """Settings of a flow's scheduled topics.

    Attributes:
        continuous: whether runs follow each other without a pause.
        seconds: for which a continuous run gathers records; otherwise from the start of a run to that of the next.
        shards: slices are divided among them.
        memory_mb: of the function.
    """

    continuous: bool
    seconds: float
    shards: int = 1
    memory_mb: int = 512

    @property
    def memory_gb(self) -> float:
        """Of the function."""
        return self.memory_mb / 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class PullRound:
    """One round of one shard, on average."""

    transactions: float
    lanes: float
    """In transactions; a lane counts once for each that it is in."""
    entries: float
    """Of the offset map."""
    mb: float
    cpu_seconds: float
    """Of a whole vCPU."""
    seconds: float
    """The shard is busy for, without its start."""

    @property
    def transaction_seconds(self) -> float:
        """One transaction."""
        return self.seconds / max(1.0, self.transactions)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRound:
    """One topic's part in a round of all shards."""

    lanes: float
    """In transactions; a lane counts once for each that it is in."""
    entries: float
    records: float
    mb: float


def pull_round(
    loads: Sequence[ReplicationLoad],
    pull: ShardSettings,
    assumptions: Assumptions = _DEFAULTS,
    *,
    at_peak: bool = False,
) -> PullRound:
    """What a shard does in a round.

    Args:
        loads: like topics each, all of them scheduled.
        pull: their settings.
        assumptions: sizes, times.
        at_peak: all topics at their highest rates at once.
    """
    gathers = gathers_of_round(loads, pull, assumptions, at_peak=at_peak)
    lanes = entries = records = mb = 0.0
    for load in loads:
        part = topic_round(load, gathers, pull, assumptions, at_peak=at_peak)
        lanes += load.topics * part.lanes / pull.shards
        entries += load.topics * part.entries / pull.shards
        records += load.topics * part.records / pull.shards
        mb += load.topics * part.mb / pull.shards
    # One that is not full is a transaction all the same; a round without records has none.
    transactions = max(lanes / assumptions.pull_lanes, min(gathers, records))
    cpu = (
        _listed(loads, pull, assumptions) * assumptions.pull_listed_lane_ms
        + transactions * assumptions.pull_transaction_ms
        + lanes * assumptions.pull_lane_ms
        + entries * assumptions.pull_entry_ms
        + _commits(loads, pull, assumptions) * assumptions.pull_group_ms
        + records * assumptions.pull_record_ms
        + mb * assumptions.pull_mb_ms
    ) / 1000
    at_work = cpu / cpu_share(pull.memory_gb, assumptions) + transactions * assumptions.pull_wait_ms / 1000
    return PullRound(
        transactions=transactions,
        lanes=lanes,
        entries=entries,
        mb=mb,
        cpu_seconds=cpu,
        seconds=max(at_work, mb / assumptions.pull_mb_per_second),
    )


def gathers_of_round(
    loads: Sequence[ReplicationLoad], pull: ShardSettings, assumptions: Assumptions, *, at_peak: bool = False
) -> float:
    """How often a shard gathers in a round, at least once."""
    records = mb = 0.0
    for load in loads:
        of_topic = _records(load, pull, at_peak=at_peak)
        records += load.topics * of_topic
        mb += load.topics * of_topic * load.record_bytes / 1e6
    by_records, by_mb = records / assumptions.pull_gather_records, mb / assumptions.pull_gather_mb
    return max(1.0, by_records / pull.shards, by_mb / pull.shards)


def topic_round(
    load: ReplicationLoad, gathers: float, pull: ShardSettings, assumptions: Assumptions, *, at_peak: bool = False
) -> TopicRound:
    """One topic's part. Lanes of a slice that are gathered apart have an entry each time: which are is by chance."""
    records = _records(load, pull, at_peak=at_peak)
    mb = records * load.record_bytes / 1e6
    lanes = min(float(load.partitions), records) * max(1.0, mb / load.partitions / assumptions.pull_fetch_mb)
    of_slice = lanes / load.slices_per_topic
    missed = float((1 - 1 / gathers) ** of_slice) if gathers > 1 else 0.0
    entries = load.slices_per_topic * min(of_slice, gathers * (1 - missed))
    return TopicRound(lanes=lanes, entries=entries, records=records, mb=mb)


def followed_lanes(load: ReplicationLoad, assumptions: Assumptions) -> float:
    """Lanes of one topic that a continuous run reads without a list of their ends, because they move."""
    return min(float(load.partitions), load.records_per_topic * assumptions.pull_idle_seconds)


def look_seconds(load: ReplicationLoad, assumptions: Assumptions) -> float:
    """Between two lists of the end of a lane that a continuous run does not follow; records come evenly."""
    of_silence = load.partitions / load.records_per_topic / assumptions.pull_looks if load.records_per_topic else inf
    return min(max(assumptions.pull_look_seconds, of_silence), assumptions.pull_longest_look_seconds)


def _is_rare(load: ReplicationLoad, assumptions: Assumptions) -> bool:
    """Whether a lane is not followed when its next record comes."""
    return 0 < load.records_per_topic * assumptions.pull_idle_seconds < load.partitions


def fits(loads: Sequence[ReplicationLoad], pull: ShardSettings, assumptions: Assumptions = _DEFAULTS) -> bool:
    """Whether each shard can do its work, in its time and in its memory."""
    busiest = _skew(loads, pull, assumptions)
    lanes = busiest * sum(load.topics * load.partitions for load in loads) / pull.shards
    if assumptions.pull_base_mb + lanes * assumptions.pull_lane_kb / 1000 + assumptions.pull_buffer_mb > pull.memory_mb:
        return False
    followed = busiest * sum(load.topics * followed_lanes(load, assumptions) for load in loads) / pull.shards
    if pull.continuous and followed > assumptions.pull_followed_lanes:
        return False
    start = 0.0 if pull.continuous else start_seconds(pull, assumptions)
    most = pull.seconds if pull.continuous else min(pull.seconds, assumptions.pull_run_seconds)
    average, highest = (busiest * pull_round(loads, pull, assumptions, at_peak=peak).seconds for peak in (False, True))
    return start + average <= assumptions.pull_utilisation * most and start + highest <= most


def pull_p99(loads: Sequence[ReplicationLoad], pull: ShardSettings, assumptions: Assumptions = _DEFAULTS) -> float:
    """Seconds from a record's arrival at the source to its commit on the target, at the 99th percentile."""
    busy = pull_round(loads, pull, assumptions)
    if not pull.continuous:
        # A lane may be first in one run and last in the next; the tails of many transactions hardly coincide.
        whole = busy.seconds * (1 + (assumptions.tail - 1) / sqrt(max(1.0, busy.transactions)))
        return pull.seconds + start_seconds(pull, assumptions) + whole
    # Each slice has a window of its own, at whose end another's transaction may be under way.
    others = min(1.0, max(0.0, busy.transactions - 1))
    found = max((look_seconds(load, assumptions) for load in loads if _is_rare(load, assumptions)), default=0.0)
    return found + pull.seconds + (assumptions.tail + others) * busy.transaction_seconds


def start_seconds(pull: ShardSettings, assumptions: Assumptions = _DEFAULTS) -> float:
    """Of a run, beside its work."""
    return assumptions.pull_cold_seconds if starts_cold(pull, assumptions) else assumptions.pull_warm_seconds


def starts_cold(pull: ShardSettings, assumptions: Assumptions = _DEFAULTS) -> bool:
    """Whether a run finds its environment gone. Of a continuous shard one is started every minute."""
    return not pull.continuous and pull.seconds > assumptions.pull_warm_for_seconds


def _records(load: ReplicationLoad, pull: ShardSettings, *, at_peak: bool) -> float:
    """Of one topic in a round. They come evenly: where they are fewer than one, as often as there is one."""
    return load.records_per_topic * pull.seconds * (load.peak if at_peak else 1.0)


def _listed(loads: Sequence[ReplicationLoad], pull: ShardSettings, assumptions: Assumptions) -> float:
    """Lanes whose ends a shard lists in a round: at the start and the end of a run, or again and again the silent."""
    lanes = sum(load.topics * load.partitions for load in loads)
    if not pull.continuous:
        return 2 * lanes / pull.shards
    silent = (
        load.topics * (load.partitions - followed_lanes(load, assumptions)) / look_seconds(load, assumptions)
        for load in loads
    )
    return sum(silent) / pull.shards * pull.seconds


def _commits(loads: Sequence[ReplicationLoad], pull: ShardSettings, assumptions: Assumptions) -> float:
    """Commits of a shard in a round for the groups of the topics that moved since the last of them."""
    seconds = max(pull.seconds, assumptions.pull_commit_seconds) if pull.continuous else pull.seconds
    moved = sum(load.topics * min(1.0, load.records_per_topic * seconds) for load in loads)
    return moved / pull.shards * pull.seconds / seconds


def _skew(loads: Sequence[ReplicationLoad], pull: ShardSettings, assumptions: Assumptions) -> float:
    """The work of the busiest shard over that of an average one, about: slices fall on shards by their hashes.

    That of m balls in n bins is m/n + sqrt(2 m/n ln n); of slices that differ, m is how many equal ones would weigh the
    same together.
    """
    if pull.shards == 1:
        return 1.0
    weights = []
    for load in loads:
        records = _records(load, pull, at_peak=False) / load.slices_per_topic
        work = records * (assumptions.pull_record_ms + load.record_bytes / 1e6 * assumptions.pull_mb_ms)
        lanes = load.partitions / load.slices_per_topic
        each = work + lanes * (assumptions.pull_lane_ms * min(1.0, records / lanes) + assumptions.pull_listed_lane_ms)
        weights.append((load.topics * load.slices_per_topic, each))
    total = sum(slices * each for slices, each in weights)
    equal = total**2 / sum(slices * each**2 for slices, each in weights)
    heaviest = max(each for _, each in weights) * pull.shards / total
    return max(heaviest, 1 + sqrt(2 * pull.shards * log(pull.shards) / equal))


STARTS_SECONDS = 60
"""Between two starts by the schedule of a continuous shard; most find that it is held, and end."""


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
