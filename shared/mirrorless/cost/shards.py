"""Load, latency and cost of scheduled topics: what a shard reads and writes in a round, and whether it can.

A *round* is one pass of a shard over its lanes: a run of an interval, or one window of a continuous run. What has come
is *gathered*, up to some MB, and written in transactions of some lanes each, one after the other. Neighbours that share
a journal are on one shard and in one transaction, so far as their records were gathered together.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, log, sqrt
from typing import Final

from mirrorless.cost import bill, prices
from mirrorless.cost.bill import USUAL, BilledSettings, Loads, ReplicationLoad

LANES: Final = 64
"""Of a transaction, at most."""
_GATHER_MB, _GATHER_RECORDS = 8, 20_000
"""Of all lanes that are gathered for transactions, at most."""
_FETCH_MB: Final = 1
"""Of a lane that come together, at most."""

_LANE_MS, _ENTRY_MS, _GROUP_MS, _RECORD_MS, _MB_MS = 0.55, 1.05, 0.9, 0.0035, 3.5
"""CPU of a lane in a transaction, an entry, a commit for a group, a record, a MB: by `python -m tests.benchmarks
pull-parts`, two busy cores. That of a transaction itself moves no bill by 1 %."""
_LISTED_LANE_MS: Final = 0.01
"""CPU of a lane in a list of log ends."""
MB_PER_SECOND: Final = 40
"""That one function reads and writes: AWS states none; assumed."""
UTILISATION: Final = 0.6
"""Of its time that a shard may be busy, so that it can catch up: assumed."""

COMMIT_SECONDS: Final = 10
"""Between two commits for a group in a continuous run; another has one."""
_LONGEST_LOOK_SECONDS, _LOOKS = 5, 30
"""Between two lists of a silent lane's end, at most, and so many while it is silent for as long again."""
_FOLLOWED_SECONDS, FOLLOWED_LANES = 60, 1_024
"""A continuous run follows a lane for so long after its last record, and so many at a time."""

_WARM_SECONDS, _COLD_SECONDS, _WARM_FOR_SECONDS = 1, 5, 300
"""Of a run beside its work, in an environment that is kept for so long between two runs, or in a new one: assumed."""
RUN_SECONDS: Final = 690
"""Of a continuous run at least; its successor warms up beside it."""
STARTS_SECONDS: Final = 60
"""Between two starts by the schedule of a continuous shard; most find that it is held, and end."""
_RUN_WRITES: Final = 5
"""Write units of a run: its lease, who holds and follows, its report."""
_COLD_READS, _POSITIONS_SECONDS = 2, 300
"""Read units of a journal in a new environment; positions and states of silent lanes are read again so often."""

_RUN_MB, _LANE_MB = 260, 0.02
"""Of a run with what is fetched ahead and in a transaction, and of a lane: the last is assumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSettings:
    """Settings of a flow's scheduled topics.

    Attributes:
        continuous: whether runs follow each other without a pause.
        seconds: for which a continuous run gathers records; otherwise from the start of a run to that of the next.
        shards: journals are divided among them.
        memory_mb: of the function.
    """

    continuous: bool
    seconds: float
    shards: int = 1
    memory_mb: int = 512

    @property
    def starts_cold(self) -> bool:
        """Whether a run finds its environment gone. Of a continuous shard one is started every minute."""
        return not self.continuous and self.seconds > _WARM_FOR_SECONDS

    @property
    def start_seconds(self) -> float:
        """Of a run, beside its work."""
        return _COLD_SECONDS if self.starts_cold else _WARM_SECONDS


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


def pull_round(loads: Loads, pull: ShardSettings, *, at_peak: bool = False) -> PullRound:
    """What a shard does in a round.

    Args:
        loads: like topics each, all of them scheduled.
        pull: their settings.
        at_peak: all topics at their highest rates at once.
    """
    gathers = _gathers(loads, pull, at_peak=at_peak)
    lanes = entries = records = mb = 0.0
    for load in loads:
        share = load.topics / pull.shards
        of_topic, in_entries = _lanes_and_entries(load, gathers, pull, at_peak=at_peak)
        lanes += share * of_topic
        entries += share * in_entries
        records += share * _records(load, pull, at_peak=at_peak)
        mb += share * _records(load, pull, at_peak=at_peak) * load.record_bytes / 1e6
    # One that is not full is a transaction all the same; a round without records has none.
    transactions = max(lanes / LANES, min(gathers, records))
    cpu = (
        _listed(loads, pull) * _LISTED_LANE_MS
        + lanes * _LANE_MS
        + entries * _ENTRY_MS
        + _commits(loads, pull) * _GROUP_MS
        + records * _RECORD_MS
        + mb * _MB_MS
    ) / 1000
    at_work = cpu / bill.cpu_share(pull.memory_mb / 1024) + transactions * bill.WAIT_MS / 1000
    return PullRound(
        transactions=transactions,
        lanes=lanes,
        entries=entries,
        mb=mb,
        cpu_seconds=cpu,
        seconds=max(at_work, mb / MB_PER_SECOND),
    )


def _records(load: ReplicationLoad, pull: ShardSettings, *, at_peak: bool = False) -> float:
    """Of one topic in a round. They come evenly: where they are fewer than one, as often as there is one."""
    return load.records_per_topic * pull.seconds * (load.peak if at_peak else 1.0)


def _gathers(loads: Loads, pull: ShardSettings, *, at_peak: bool = False) -> float:
    """How often a shard gathers in a round, at least once."""
    records = [(load.topics * _records(load, pull, at_peak=at_peak), load.record_bytes) for load in loads]
    by_records = sum(count for count, _ in records) / _GATHER_RECORDS
    by_mb = sum(count * size for count, size in records) / 1e6 / _GATHER_MB
    return max(1.0, by_records / pull.shards, by_mb / pull.shards)


def _lanes_and_entries(
    load: ReplicationLoad, gathers: float, pull: ShardSettings, *, at_peak: bool = False
) -> tuple[float, float]:
    """One topic's lanes in transactions of a round of all shards, and its entries.

    Lanes of a journal that are gathered apart have an entry each time: which are is by chance.
    """
    records = _records(load, pull, at_peak=at_peak)
    fetches = records * load.record_bytes / 1e6 / load.partitions / _FETCH_MB
    lanes = min(float(load.partitions), records) * max(1.0, fetches)
    of_journal = lanes / load.journals_per_topic
    missed = float((1 - 1 / gathers) ** of_journal) if gathers > 1 else 0.0
    return lanes, load.journals_per_topic * min(of_journal, gathers * (1 - missed))


def _followed(load: ReplicationLoad) -> float:
    """Lanes of one topic that a continuous run reads without a list of their ends, because they move."""
    return min(float(load.partitions), load.records_per_topic * _FOLLOWED_SECONDS)


def _look_seconds(load: ReplicationLoad) -> float:
    """Between two lists of the end of a lane that a continuous run does not follow; records come evenly."""
    of_silence = load.partitions / load.records_per_topic / _LOOKS if load.records_per_topic else inf
    return min(of_silence, _LONGEST_LOOK_SECONDS)


def _listed(loads: Loads, pull: ShardSettings) -> float:
    """Lanes whose ends a shard lists in a round: at the start and the end of a run, or again and again the silent."""
    if not pull.continuous:
        return 2 * sum(load.topics * load.partitions for load in loads) / pull.shards
    silent = (load.topics * (load.partitions - _followed(load)) / _look_seconds(load) for load in loads)
    return sum(silent) / pull.shards * pull.seconds


def _commits(loads: Loads, pull: ShardSettings) -> float:
    """Commits of a shard in a round for the groups of the topics that moved since the last of them."""
    seconds = max(pull.seconds, COMMIT_SECONDS) if pull.continuous else pull.seconds
    moved = sum(load.topics * min(1.0, load.records_per_topic * seconds) for load in loads)
    return moved / pull.shards * pull.seconds / seconds


def fits(loads: Loads, pull: ShardSettings) -> bool:
    """Whether each shard can do its work, in its time and in its memory."""
    busiest = _skew(loads, pull)
    lanes = busiest * sum(load.topics * load.partitions for load in loads) / pull.shards
    if _RUN_MB + lanes * _LANE_MB > pull.memory_mb:
        return False
    followed = busiest * sum(load.topics * _followed(load) for load in loads) / pull.shards
    if pull.continuous and followed > FOLLOWED_LANES:
        return False
    start = 0.0 if pull.continuous else pull.start_seconds
    most = pull.seconds if pull.continuous else min(pull.seconds, RUN_SECONDS)
    average, highest = (busiest * pull_round(loads, pull, at_peak=peak).seconds for peak in (False, True))
    return start + average <= UTILISATION * most and start + highest <= most


def _skew(loads: Loads, pull: ShardSettings) -> float:
    """The work of the busiest shard over that of an average one, about: journals fall on shards by their hashes.

    That of m balls in n bins is m/n + sqrt(2 m/n ln n); of journals that differ, m is how many equal ones would weigh
    the same together.
    """
    if pull.shards == 1:
        return 1.0
    weights = []
    for load in loads:
        records = _records(load, pull) / load.journals_per_topic
        lanes = load.partitions / load.journals_per_topic
        work = records * (_RECORD_MS + load.record_bytes / 1e6 * _MB_MS)
        each = work + lanes * (_LANE_MS * min(1.0, records / lanes) + _LISTED_LANE_MS)
        weights.append((load.topics * load.journals_per_topic, each))
    total = sum(journals * each for journals, each in weights)
    equal = total**2 / sum(journals * each**2 for journals, each in weights)
    heaviest = max(each for _, each in weights) * pull.shards / total
    return max(heaviest, 1 + sqrt(2 * pull.shards * log(pull.shards) / equal))


def pull_p99(loads: Loads, pull: ShardSettings) -> float:
    """Seconds from a record's arrival at the source to its commit on the target, at the 99th percentile."""
    busy = pull_round(loads, pull)
    if not pull.continuous:
        # A lane may be first in one run and last in the next; the tails of many transactions hardly coincide.
        whole = busy.seconds * (1 + (bill.TAIL - 1) / sqrt(max(1.0, busy.transactions)))
        return pull.seconds + pull.start_seconds + whole
    # Each journal has a window of its own, at whose end another's transaction may be under way.
    others = min(1.0, max(0.0, busy.transactions - 1))
    # Of a lane that is not followed any more when its next record comes.
    rare = (load for load in loads if 0 < load.records_per_topic * _FOLLOWED_SECONDS < load.partitions)
    found = max(map(_look_seconds, rare), default=0.0)
    return found + pull.seconds + (bill.TAIL + others) * busy.transaction_seconds


def pulled(loads: Loads, pull: ShardSettings, settings: BilledSettings = USUAL) -> dict[str, float]:
    """Dollars a month by part of scheduled topics, beside what their flow costs by itself."""
    runs = pull.shards / (STARTS_SECONDS if pull.continuous else pull.seconds)
    # Functions that are there, on average; a continuous run's successor warms up beside it.
    beside = pull.shards * (1 + _COLD_SECONDS / RUN_SECONDS)
    at_work = beside if pull.continuous else runs * pull_round(loads, pull).seconds
    lines = at_work / bill.LOG_LINE_SECONDS + (0.0 if pull.continuous else runs)
    costs = {
        "functions: time": bill.function_time(
            (runs * pull.start_seconds + at_work) * bill.SECONDS, pull.memory_mb / 1024
        ),
        "functions: calls": runs * bill.SECONDS * (prices.LAMBDA_REQUEST + prices.SCHEDULER_CALL),
        "offset map: writes": bill.writes(runs * _RUN_WRITES * bill.SECONDS, settings),
        "offset map: reads": _reads(loads, pull) * bill.SECONDS * prices.DYNAMODB_READ_UNIT,
        # Of the runs a metric, and three that their alarms read.
        "metrics, alarms, logs": bill.observation(metrics=1, alarms=3, log_lines=lines * bill.SECONDS),
    }
    gathers = _gathers(loads, pull)
    return bill.together(costs, *(_own_costs(load, gathers, pull, settings) for load in loads))


def pulled_alone(load: ReplicationLoad, loads: Loads, pull: ShardSettings, settings: BilledSettings = USUAL) -> float:
    """Dollars a month of what like topics, among all that are scheduled, add to runs that are paid for anyway."""
    return sum(_own_costs(load, _gathers(loads, pull), pull, settings).values())


def _own_costs(
    load: ReplicationLoad, gathers: float, pull: ShardSettings, settings: BilledSettings
) -> dict[str, float]:
    """Dollars a month of like topics' entries, and of the states of their lanes, which are read once a run at most."""
    states = {"offset map: reads": bill.state_reads([load]) * min(1.0, 60 / pull.seconds)}
    lanes, entries = _lanes_and_entries(load, gathers, pull)
    if not entries:
        return states
    return states | bill.written(load.topics * entries / pull.seconds, lanes / entries, load, settings)


def _reads(loads: Loads, pull: ShardSettings) -> float:
    """Read units a second: all positions and states in a new environment, and those of silent lanes again and again."""
    anew = sum(load.topics * (load.journals_per_topic * _COLD_READS + load.partitions) for load in loads)
    if pull.starts_cold:
        return anew / pull.seconds
    silent = 0.0
    for load in loads:
        moving = _followed(load)
        silent += load.topics * (load.partitions - moving + max(0.0, load.journals_per_topic - moving))
    return silent / _POSITIONS_SECONDS + (anew / RUN_SECONDS if pull.continuous else 0.0)
