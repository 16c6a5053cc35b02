"""The monthly bill of a flow, and what MSK Replicator and MirrorMaker 2 on MSK Connect would take for its topics.

Pure arithmetic on a load, the flow's settings and list prices. Not in it, because all pay it alike: the Kafka clusters
and bytes between regions.

The numbers below are limits and defaults of AWS's documentation, or were measured on two cores of an AMD EPYC. What was
assumed says so. A tenth more of most of them moves no bill by 2 %.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Final, Literal

from mirrorless.chain.lane import JOURNAL_LANES
from mirrorless.cost import prices
from mirrorless.flow.counts import WATCHES
from mirrorless.flow.poller_groups import MAPPINGS_OF_A_GROUP

HOURS: Final = 730.0
"""Of a month."""
SECONDS: Final = HOURS * 3600
_MINUTES: Final = HOURS * 60

PARTS: Final = (
    "functions: time",
    "functions: calls",
    "pollers",
    "offset map: writes",
    "offset map: reads",
    "offset map: storage",
    "scheduled functions",
    "heartbeats",
    "metrics, alarms, logs",
    "dashboard",
)
"""Of a bill."""

Mode = Literal["on-demand", "provisioned"]
"""Of mappings. Provisioned: in as few poller groups as hold them."""

# Functions

VCPU_GB: Final = 1.769
"""Of Lambda's memory that come with a vCPU, which is taken to be as fast as the core that was measured."""
WAIT_MS: Final = 60
"""Of a transaction: round trips to a near target, and two writes to DynamoDB. Across an ocean it is 350."""
_SCHEDULED_GB: Final = 0.25

# Events of mappings

OWN_WINDOW_SECONDS: Final = 0.5
"""Lambda's own batching window, where a mapping sets none."""
NO_WINDOW_SECONDS: Final = 0.02
"""What a mapping without a window waits all the same."""
_POLL_MS: Final = 100
"""From a window's end to the function: assumed."""
_EVENT_BYTES: Final = 6_000_000
"""Of an event's JSON at most."""
_RECORD_BYTES: Final = 170
"""Of JSON around a record's base64."""
_EVENT_CPU_MS, _RECORD_CPU_MS, _MB_CPU_MS = 3.783, 0.001353, 3.285
"""By `python -m tests.benchmarks forwarder`."""
_POLLER_MB_PER_SECOND: Final = 5
_UNIT_POLLERS, _UNIT_MB_PER_SECOND = 10, 20
"""Of an event poller unit."""
TAIL: Final = 2
"""Times the mean that an event or a transaction takes at the 99th percentile: assumed."""

# Entries of the offset map

WRITES_OF_ENTRY: Final = 2
"""Prepared, confirmed; each is paid by the KB."""
_ENTRY_BYTES, _RUN_BYTES, _PACKED_BYTES, _PACKED_RUN_BYTES, _HEAD_BYTES = 234, 85, 45, 50, 16
"""Of an entry alone; of its only run; of several, which are compressed, together and each; of another lane's head."""
ITEM_BYTES: Final = 100
"""That DynamoDB adds to an item's storage."""

# What a flow has once

METRICS_OF_FLOW, METRICS_OF_RECORDS, METRICS_OF_TOPIC = 4, 2, 6
"""Heartbeats emitted and arrived, their age and latency; records and bytes; and on request for each topic with any."""
ALARMS: Final = 4 + sum(bool(each.alarm) for each in WATCHES.values())
"""Metrics that a flow's alarms read, one each: of silence, lateness and failed calls, and those that are watched. One
alarm more is of all of them."""
LOG_LINE_BYTES, LOG_LINE_SECONDS = 480, 10
"""Of gathered metrics, and for how long an environment gathers them. There is one for each busy poller, about."""
_IDLE_SECONDS, _MOVING_SECONDS, _REFRESH_SECONDS = 2, 58, 5
"""A minute of `control` while nothing moves, while groups move, and of `refresh_topics`: assumed."""
_IDLE_WRITES, _MOVING_WRITES, _COMMITS = 10, 140, 12
"""Write units a minute: of both; more while ten groups move; how often these commit. A round writes them all."""
JOURNALS_PER_SECOND: Final = 80
"""That rounds read at most, on average, a read unit each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationLoad:
    """What is replicated, in one direction.

    Attributes:
        mb_per_second: key and value bytes, uncompressed, all day; 1 MB is 10^6 bytes.
        record_bytes: of one record.
        topics: that carry this evenly.
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
    def journals_per_topic(self) -> int:
        """Journals of the offset map of one topic."""
        return ceil(self.partitions / JOURNAL_LANES)

    def at(self, mb_per_second: float) -> ReplicationLoad:
        """The same at another rate."""
        return replace(self, mb_per_second=mb_per_second)


Loads = Sequence[ReplicationLoad]
"""Of a flow's topics, alike in each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BilledSettings:
    """The settings of a flow and of its deployment that its bill depends on."""

    memory_gb: float = 1.0
    """Of the function behind mappings."""
    batch_size: int = 10_000
    """Records of an event, at most."""
    retention_days: float = 30
    """Of the offset map."""
    copies: int = 0
    """Of the tables, in other regions."""
    checkpoint_seconds: float = 2
    heartbeat_seconds: float = 60
    metrics_per_topic: bool = False


USUAL: Final = BilledSettings()
"""By default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MappingSettings:
    """Settings of the mappings of a flow.

    Attributes:
        mode: who scales the pollers.
        window: `mapping.maximum.batching.window.seconds`; None: left out, half a second.
    """

    mode: Mode = "on-demand"
    window: int | None = None

    @property
    def seconds(self) -> float:
        """A mapping gathers records for so long."""
        return OWN_WINDOW_SECONDS if self.window is None else self.window or NO_WINDOW_SECONDS


def together(*costs: Mapping[str, float]) -> dict[str, float]:
    """The sums of several costs by part, in the order of `PARTS`."""
    return {part: sum(each.get(part, 0.0) for each in costs) for part in PARTS}


def function_time(seconds: float, memory_gb: float) -> float:
    """Dollars of a function's time."""
    return seconds * memory_gb * prices.LAMBDA_GB_SECOND["arm64"]


def cpu_share(memory_gb: float) -> float:
    """The share of a vCPU that a function of so much memory has; more than one helps no single thread."""
    return min(1.0, memory_gb / VCPU_GB)


def pollers(load: ReplicationLoad) -> float:
    """Pollers of one topic that are busy."""
    wanted = ceil(load.mb_per_second / load.topics / _POLLER_MB_PER_SECOND)
    return min(max(1, wanted), load.partitions)


def records_per_event(load: ReplicationLoad, settings: BilledSettings = USUAL) -> float:
    """Records of a full event."""
    return min(settings.batch_size, _EVENT_BYTES / (load.record_bytes * 4 / 3 + _RECORD_BYTES))


def events_per_second(load: ReplicationLoad, mapping: MappingSettings, settings: BilledSettings = USUAL) -> float:
    """How often the function is invoked: when an event is full, or a poller's window ends with something in it."""
    full = load.records_per_topic / records_per_event(load, settings)
    ended = min(load.records_per_topic, pollers(load) / mapping.seconds)
    return load.topics * max(full, ended)


def event_seconds(records: float, mb: float, settings: BilledSettings = USUAL) -> float:
    """Of the function for an event: its CPU at the share that its memory gives, and what it waits for."""
    cpu = _EVENT_CPU_MS + _RECORD_CPU_MS * records + _MB_CPU_MS * mb
    return (cpu / cpu_share(settings.memory_gb) + WAIT_MS) / 1000


def mapping_p99(load: ReplicationLoad, mapping: MappingSettings, settings: BilledSettings = USUAL) -> float:
    """Seconds from a record's arrival at the source to its commit on the target, at the 99th percentile."""
    return mapping.seconds + _POLL_MS / 1000 + TAIL * _average_event_seconds(load, mapping, settings)


def _average_event_seconds(load: ReplicationLoad, mapping: MappingSettings, settings: BilledSettings) -> float:
    events = events_per_second(load, mapping, settings)
    if not events:
        return 0.0
    return event_seconds(load.topics * load.records_per_topic / events, load.mb_per_second / events, settings)


def mapped(loads: Loads, mapping: MappingSettings, settings: BilledSettings = USUAL) -> dict[str, float]:
    """Dollars a month by part of topics with mappings, beside what their flow costs by itself."""
    units = _poller_units(loads) if mapping.mode == "provisioned" else 0
    paid = {"pollers": units * HOURS * prices.EVENT_POLLER_UNIT_HOUR}
    return together(paid, *(_mapped(load, mapping, settings) for load in loads if load.mb_per_second))


def _mapped(load: ReplicationLoad, mapping: MappingSettings, settings: BilledSettings) -> dict[str, float]:
    """Of like topics, without their pollers."""
    events = events_per_second(load, mapping, settings)
    records = load.topics * load.records_per_topic
    busy = events * _average_event_seconds(load, mapping, settings)
    lanes = min(load.partitions / pollers(load), records / events)
    entries = events * min(lanes, load.journals_per_topic)
    lines = min(events, load.topics * pollers(load) / LOG_LINE_SECONDS)
    return together(
        {
            "functions: time": function_time(busy * SECONDS, settings.memory_gb),
            "functions: calls": events * SECONDS * prices.LAMBDA_REQUEST,
            "offset map: reads": state_reads([load]),
            "metrics, alarms, logs": observation(
                metrics=load.topics * METRICS_OF_TOPIC * settings.metrics_per_topic, log_lines=lines * SECONDS
            ),
        },
        written(entries, events * lanes / entries, load, settings),
    )


def _poller_units(loads: Loads) -> int:
    """Event poller units of the groups that hold these mappings."""
    groups = ceil(sum(load.topics for load in loads) / MAPPINGS_OF_A_GROUP)
    if not groups:
        return 0
    by_number = sum(load.topics * pollers(load) for load in loads) / groups / _UNIT_POLLERS
    by_rate = sum(load.mb_per_second for load in loads) / groups / _UNIT_MB_PER_SECOND
    return groups * max(1, ceil(by_number), ceil(by_rate))


def written(entries: float, lanes: float, load: ReplicationLoad, settings: BilledSettings = USUAL) -> dict[str, float]:
    """Dollars a month of entries in the offset map: to write them, and to keep them.

    Args:
        entries: a second.
        lanes: of an entry that have a run in it.
        load: of like topics.
        settings: retention, copies.
    """
    size = entry_bytes(lanes, others=max(0.0, min(load.partitions, JOURNAL_LANES) - lanes))
    units = entries * SECONDS * WRITES_OF_ENTRY * ceil(size / 1024)
    stored_gb = entries * settings.retention_days * 86_400 * (size + ITEM_BYTES) / 1e9
    return {
        "offset map: writes": writes(units, settings),
        "offset map: storage": (1 + settings.copies) * stored_gb * prices.DYNAMODB_STORED_GB_MONTH,
    }


def entry_bytes(runs: float, *, others: float = 0) -> float:
    """Bytes of an entry with so many runs, without what DynamoDB adds to an item. Others: lanes without a run in it."""
    links = _PACKED_BYTES + runs * _PACKED_RUN_BYTES if runs >= 2 else runs * _RUN_BYTES  # noqa: PLR2004 -- several
    return _ENTRY_BYTES + links + others * _HEAD_BYTES


def writes(units: float, settings: BilledSettings) -> float:
    """Dollars of write units, which are paid again in each copy."""
    return units * (1 + settings.copies) * prices.DYNAMODB_WRITE_UNIT


def state_reads(loads: Loads) -> float:
    """Dollars a month of reading the states of lanes that carry records: each minute its stop and the orders."""
    lanes = sum(load.topics * min(load.partitions, 60 * load.records_per_topic) for load in loads)
    return _MINUTES * lanes * prices.DYNAMODB_READ_UNIT


def observation(*, metrics: float = 0.0, alarms: float = 0.0, log_lines: float = 0.0) -> float:
    """Dollars a month of our own metrics, of metrics that alarms read, and of lines that are logged."""
    return (
        metrics * prices.CLOUDWATCH_METRIC_MONTH
        + alarms * prices.CLOUDWATCH_ALARM_MONTH
        + log_lines * LOG_LINE_BYTES / 1e9 * prices.CLOUDWATCH_LOGS_GB
    )


def shared(loads: Loads, settings: BilledSettings = USUAL) -> dict[str, float]:
    """Dollars a month by part of what a flow has once: scheduled functions, heartbeats, metrics, a dashboard."""
    moving = any(load.mb_per_second for load in loads)
    journals = sum(load.topics * load.journals_per_topic for load in loads)
    metrics = METRICS_OF_FLOW + (METRICS_OF_RECORDS if moving else 0)
    return {
        "scheduled functions": _scheduled(journals, settings, moving=moving),
        "heartbeats": _heartbeats(settings),
        "metrics, alarms, logs": observation(metrics=metrics, alarms=ALARMS) + prices.CLOUDWATCH_COMPOSITE_MONTH,
        "dashboard": prices.CLOUDWATCH_DASHBOARD_MONTH,
    }


def _scheduled(journals: int, settings: BilledSettings, *, moving: bool) -> float:
    """Dollars a month of the two functions that a schedule starts once a minute. Moving: whether all groups do."""
    rounds = 60 / settings.checkpoint_seconds if moving else 1.0
    often = rounds > 1 or settings.heartbeat_seconds < 60  # noqa: PLR2004 -- the schedule's interval
    reads = min(rounds * journals, 60 * JOURNALS_PER_SECOND)
    # A run that is not kept for its whole window ends with its round, which reads at its pace.
    ended = _IDLE_SECONDS + (reads / JOURNALS_PER_SECOND if moving else 0.0)
    seconds = (_MOVING_SECONDS if often else ended) + _REFRESH_SECONDS
    units = _IDLE_WRITES + (_MOVING_WRITES * min(1.0, rounds / _COMMITS) if moving else 0.0)
    return _MINUTES * (
        function_time(seconds, _SCHEDULED_GB)
        + 2 * (prices.LAMBDA_REQUEST + prices.SCHEDULER_CALL)
        + reads * prices.DYNAMODB_READ_UNIT
        + writes(units, settings)
    )


def _heartbeats(settings: BilledSettings) -> float:
    """Dollars a month of replicating a flow's heartbeats: each is an event of one record."""
    event = function_time(event_seconds(1, 0, settings), settings.memory_gb) + prices.LAMBDA_REQUEST
    return SECONDS / settings.heartbeat_seconds * (event + writes(WRITES_OF_ENTRY, settings))


def standby(settings: BilledSettings = USUAL) -> float:
    """Dollars a month of a function `control` that stands by in the target's region: a fifth of a second, three alarms.

    Each minute it reads the home's time and writes its own, and the home writes its.
    """
    return observation(alarms=3) + _MINUTES * (
        function_time(0.2, _SCHEDULED_GB)
        + prices.LAMBDA_REQUEST
        + prices.SCHEDULER_CALL
        + prices.DYNAMODB_READ_UNIT
        + writes(2, settings)
    )


_MM2_RECORD_SECONDS: Final = {100: 1 / 291_000, 1_000: 1 / 115_000}
"""CPU of a record of so many bytes, exactly once and tuned: `make bench`, medians on six partitions."""


def msk_replicator(load: ReplicationLoad) -> float:
    """Dollars a month, of bytes as they stand in the log. One takes 750 topics, by its documentation."""
    gb_month = load.mb_per_second * SECONDS / 1000
    return max(1, ceil(load.topics / 750)) * HOURS * prices.MSK_REPLICATOR_HOUR + gb_month * prices.MSK_REPLICATOR_GB


def msk_connect(load: ReplicationLoad) -> float:
    """Dollars a month of MirrorMaker 2's three connectors: two have a unit each, and the first is half busy at most."""
    small, large = _MM2_RECORD_SECONDS.values()
    per_record = small + (large - small) * (load.record_bytes - 100) / 900
    vcpu = load.mb_per_second * 1e6 / load.record_bytes * per_record
    return (max(1, ceil(vcpu / 0.5)) + 2) * HOURS * prices.MSK_CONNECT_UNIT_HOUR
