"""Assumptions of the cost model: everything that is neither a price nor the reader's workload.

Limits of Lambda, defaults of replication.yaml and estimates, with the reason of each in one table: `TABLE`. Below it
are the measured figures.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import Final, NamedTuple

from mirrorless.chain.lane import SLICE_LANES

HOURS: Final = 730.0
"""Of a month."""


METRICS_PER_TOPIC: Final = 6
"""Of a topic that carries records, where the deployment switches them on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationLoad:
    """What is replicated, in one direction.

    Attributes:
        mb_per_second: key and value bytes, uncompressed, all day; 1 MB is 10^6 bytes.
        record_bytes: of one record.
        topics: that carry this evenly, each with a mapping of its own.
        partitions: of one topic.
        peak: the highest rate over the average one; more is to be carried then, and no more is paid for.
    """

    mb_per_second: float
    record_bytes: float = 1_000
    topics: int = 10
    partitions: int = 6
    peak: float = 1.0

    @property
    def records_per_topic(self) -> float:
        """Records a second of one topic."""
        return self.mb_per_second * 1e6 / self.record_bytes / self.topics

    @property
    def slices_per_topic(self) -> int:
        """Slices of the offset map of one topic."""
        return ceil(self.partitions / SLICE_LANES)

    def gb_month(self) -> float:
        """Uncompressed GB a month."""
        return self.mb_per_second * HOURS * 3600 / 1000

    def at(self, mb_per_second: float) -> ReplicationLoad:
        """The same at another rate."""
        return replace(self, mb_per_second=mb_per_second)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """The model's numbers; `TABLE` says why."""

    memory_gb: float = 1.0
    vcpu_gb: float = 1.769
    wait_ms: float = 60.0
    window_seconds: float = 0.5
    event_bytes: float = 6_000_000
    event_records: float = 10_000
    record_overhead_bytes: float = 170
    poller_mb_per_second: float = 5.0
    unit_pollers: float = 10
    unit_mb_per_second: float = 20.0
    writes_per_entry: float = 2
    entry_bytes: float = 234
    run_bytes: float = 85
    packed_from_runs: float = 2
    packed_bytes: float = 45
    packed_run_bytes: float = 50
    item_bytes: float = 100
    retention_days: float = 30
    copies: float = 0
    log_line_bytes: float = 480
    log_line_seconds: float = 10
    idle_log_bytes: float = 1_200
    moving_log_bytes: float = 5_600
    metrics_per_flow: float = 4
    metrics_of_records: float = 2
    metrics_per_topic: float = 0
    alarms: float = 14
    composite_alarms: float = 1
    dashboards: float = 1
    heartbeat_seconds: float = 60
    scheduled_gb: float = 0.25
    idle_seconds: float = 2
    moving_seconds: float = 58
    refresh_seconds: float = 5
    standby_seconds: float = 0.2
    standby_alarms: float = 3
    idle_writes: float = 10
    moving_writes: float = 150
    group_commits: float = 12
    rounds: float = 30
    slices_per_second: float = 80
    document_reads: float = 20
    head_bytes: float = 16
    state_reads: float = 1
    poll_ms: float = 100
    tail: float = 2
    pull_lanes: float = 64
    pull_gather_mb: float = 8
    pull_gather_records: float = 20_000
    pull_fetch_mb: float = 1
    pull_wait_ms: float = 60
    pull_transaction_ms: float = 2.1
    pull_lane_ms: float = 0.55
    pull_entry_ms: float = 1.05
    pull_group_ms: float = 0.9
    pull_commit_seconds: float = 10
    pull_listed_lane_ms: float = 0.01
    pull_look_seconds: float = 1
    pull_longest_look_seconds: float = 5
    pull_looks: float = 30
    pull_idle_seconds: float = 60
    pull_followed_lanes: float = 1_024
    pull_positions_seconds: float = 300
    pull_record_ms: float = 0.0035
    pull_mb_ms: float = 3.5
    pull_mb_per_second: float = 40
    pull_utilisation: float = 0.6
    pull_warm_seconds: float = 1
    pull_cold_seconds: float = 5
    pull_warm_for_seconds: float = 300
    pull_run_seconds: float = 690
    pull_lease_seconds: float = 15
    pull_run_writes: float = 5
    pull_base_mb: float = 65
    pull_lane_kb: float = 20
    pull_buffer_mb: float = 195
    pull_cold_reads: float = 2
    pull_run_log_bytes: float = 900
    pull_metrics: float = 1
    pull_alarms: float = 3


_PULL_MEASURED: Final = "measured 2026-11-23 on two busy cores, `python -m tests.benchmarks pull-parts`"

TABLE: Final[dict[str, tuple[str, str]]] = {
    "memory_gb": ("GB", "`memory.mb`, its default"),
    "vcpu_gb": (
        "GB per vCPU",
        "Lambda's documentation; a vCPU is taken to be as fast as a core of the machine that measured",
    ),
    "wait_ms": (
        "ms an event",
        "round trips to a near target: transaction and two writes to DynamoDB; 350 across an ocean",
    ),
    "window_seconds": ("s", "Lambda's own batching window, where the mapping sets none"),
    "event_bytes": ("bytes", "of an event's JSON at most: Lambda's limit"),
    "event_records": ("records", "of an event at most: `batch.size`, its default"),
    "record_overhead_bytes": ("bytes", "of JSON around a record's base64, from events as Lambda writes them"),
    "poller_mb_per_second": ("MB/s", "that one poller takes: Lambda's documentation"),
    "unit_pollers": ("pollers", "of one event poller unit: Lambda's documentation"),
    "unit_mb_per_second": ("MB/s", "of one event poller unit: Lambda's documentation"),
    "writes_per_entry": ("writes", "of an event in each slice that it touches: prepared, confirmed; paid by the KB"),
    "entry_bytes": (
        "bytes",
        "of an entry without its runs: key, ids, clock, expiry; `tests/contract/test_capacity_units.py`",
    ),
    "run_bytes": ("bytes", "of a run in an entry, of contiguous offsets"),
    "packed_from_runs": ("runs", "from which an entry's runs are compressed"),
    "packed_bytes": ("bytes", "of such an entry's runs together, beside each one's own"),
    "packed_run_bytes": ("bytes", "of a run in such an entry"),
    "copies": ("tables", "of each, in other regions: `offset.map.replicas.enabled`; each write is paid there again"),
    "item_bytes": ("bytes", "that DynamoDB adds to each item's storage: its documentation"),
    "retention_days": ("days", "`offset.map.retention.days`, its default"),
    "log_line_bytes": ("bytes", "a line of gathered metrics"),
    "log_line_seconds": ("s", "for which an environment gathers; there is one for each busy poller, about"),
    "idle_log_bytes": ("bytes a minute", "a line for each round of a task, and the heartbeats' event"),
    "moving_log_bytes": ("bytes a minute", "the same while groups move"),
    "metrics_per_flow": (
        "metrics",
        "heartbeats emitted and arrived, their age and their latency; troubles come on top",
    ),
    "metrics_of_records": ("metrics", "records and bytes, where there are any"),
    "metrics_per_topic": ("metrics", f"only with `metrics.per.topic`: {METRICS_PER_TOPIC}"),
    "alarms": ("metrics", "that the alarms of a flow read, one each; each is paid for"),
    "composite_alarms": ("alarms", "of a flow, of all of its others; each is paid for"),
    "dashboards": ("dashboards", "of a flow; the account's first three are free, which is left out"),
    "heartbeat_seconds": ("s", "`emit.heartbeats.interval.seconds`, its default; each is an event of its own"),
    "scheduled_gb": ("GB", "of the scheduled functions"),
    "idle_seconds": ("s a minute", "of the function `control` while nothing moves, a round of each task: assumed"),
    "moving_seconds": ("s a minute", "while groups move, or with heartbeats below a minute: its whole window"),
    "refresh_seconds": ("s a minute", "of the function `refresh_topics`: assumed"),
    "standby_seconds": ("s a minute", "of a standby while the home runs, a read and a write: assumed"),
    "standby_alarms": ("metrics", "that the alarms of a standby read"),
    "idle_writes": ("write units a minute", "of both, two leases and the tasks' reports, while nothing moves"),
    "moving_writes": ("write units a minute", "while groups move, ten groups that commit every 5 s: assumed"),
    "group_commits": ("a minute", "of these groups; each round writes what was committed since the one before"),
    "rounds": (
        "a minute",
        "of checkpoints while groups move: 60 / `emit.checkpoints.interval.seconds`; by trigger, 60 / the latency",
    ),
    "slices_per_second": ("slices", "that rounds read at most, on average; a slice's heads are a read unit"),
    "document_reads": ("read units a minute", "of both, their documents: assumed"),
    "head_bytes": ("bytes", "in an entry, of each other lane of its slice"),
    "state_reads": ("read units a minute", "of each lane that carries records: its stop and the operator's orders"),
    "poll_ms": ("ms", "from a window's end to the function: assumed"),
    "tail": ("times", "the mean that the 99th percentile of an event or a transaction takes: assumed"),
    "pull_lanes": ("lanes", "of a transaction of scheduled topics at most"),
    "pull_gather_mb": ("MB", "of all lanes that are gathered for transactions, at most"),
    "pull_gather_records": ("records", "the same"),
    "pull_fetch_mb": ("MB", "of a lane that come together, at most"),
    "pull_wait_ms": ("ms a transaction", "as of an event: assumed until measured"),
    "pull_transaction_ms": ("ms of CPU a transaction", "an event's own share without its two calls to DynamoDB"),
    "pull_lane_ms": ("ms of CPU", f"of a lane in a transaction: {_PULL_MEASURED}"),
    "pull_entry_ms": ("ms of CPU", f"of an entry, its two calls to DynamoDB: {_PULL_MEASURED}"),
    "pull_group_ms": ("ms of CPU", f"of a commit for a topic's consumer group: {_PULL_MEASURED}"),
    "pull_commit_seconds": ("s", "between two such commits of a continuous run; another has one"),
    "pull_listed_lane_ms": ("ms of CPU", "of a lane in a list of log ends: measured, 6,000 lanes"),
    "pull_look_seconds": ("s", "between two such lists of a continuous run, of lanes not followed, at least"),
    "pull_longest_look_seconds": ("s", "the same at most, for lanes that are silent for long"),
    "pull_looks": ("times", "that a lane is listed while it is silent for as long again, between the two"),
    "pull_idle_seconds": ("s", "without a record, after which a continuous run follows a lane no more"),
    "pull_followed_lanes": ("lanes", "that a shard follows at a time, at most"),
    "pull_positions_seconds": ("s", "after which positions and states of silent lanes are read again"),
    "pull_record_ms": (
        "ms of CPU a record",
        f"lanes and entries apart: {_PULL_MEASURED}",
    ),
    "pull_mb_ms": ("ms of CPU a MB", f"see above: {_PULL_MEASURED}"),
    "pull_mb_per_second": ("MB/s", "that one function reads and writes: AWS states none; assumed"),
    "pull_utilisation": ("of its time", "that a shard may be busy, so that it can catch up: assumed"),
    "pull_warm_seconds": ("s", "of a run in a warm environment beside its work: assumed until measured"),
    "pull_cold_seconds": ("s", "of a run in a new environment beside its work: assumed until measured"),
    "pull_warm_for_seconds": ("s", "between two runs for which Lambda keeps an environment: assumed"),
    "pull_run_seconds": ("s", "of a continuous run at least; its successor warms up beside it"),
    "pull_lease_seconds": ("s", "between two renewals of a shard's lease, a write unit each"),
    "pull_run_writes": ("write units", "of a run: its lease, who holds and follows, its report"),
    "pull_base_mb": ("MB", f"of a run without lanes: {_PULL_MEASURED}"),
    "pull_lane_kb": ("KB", "of a lane: assumed until measured"),
    "pull_buffer_mb": ("MB", f"fetched ahead, and of a transaction in memory: {_PULL_MEASURED}"),
    "pull_cold_reads": ("read units", "of each slice in a new environment: assumed"),
    "pull_run_log_bytes": ("bytes", "that Lambda logs of a run, and its report: assumed"),
    "pull_metrics": ("metrics", "of a flow with scheduled topics: assumed"),
    "pull_alarms": ("metrics", "that the alarms of its runs read"),
}
"""Unit of each assumption, and where it is from."""


class MeasuredEvent(NamedTuple):
    """CPU of the forwarder for one event of equal records."""

    record_bytes: int
    records: int
    cpu_ms: float


MEASURED_ON: Final = "2026-11-22: 2 cores, AMD EPYC, Python 3.11, idle otherwise"

MEASURED_EVENTS: Final = (
    MeasuredEvent(record_bytes=100, records=10, cpu_ms=3.8),
    MeasuredEvent(record_bytes=100, records=10_000, cpu_ms=20.6),
    MeasuredEvent(record_bytes=1_000, records=3_992, cpu_ms=22.3),
)
"""By `python -m tests.benchmarks forwarder`."""
