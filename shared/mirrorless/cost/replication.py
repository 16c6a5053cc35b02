"""Monthly cost of replication, and what MSK Replicator and MirrorMaker 2 on MSK Connect take for it.

Pure arithmetic on a workload, assumptions, prices and measured CPU. Not in it, because all pay it alike: the Kafka
clusters and bytes between regions. No free tier, no savings plans, no discounts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Final, Literal

from mirrorless.chain.lane import SLICE_LANES
from mirrorless.cost.assumptions import (
    HOURS,
    MEASURED_EVENTS,
    Assumptions,
    ReplicationLoad,
)
from mirrorless.cost.prices import PRICES, Architecture
from mirrorless.flow.poller_groups import MAPPINGS_OF_A_GROUP

Mode = Literal["on-demand", "provisioned"]
"""Of the mappings. Provisioned: in as few poller groups as hold them."""

ARCHITECTURE: Final[Architecture] = "arm64"
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
"""Of a flow's costs."""

SECONDS: Final = HOURS * 3600
_MINUTES = HOURS * 60
_DEFAULTS = Assumptions()


def event_cpu_ms(records: float, value_bytes: float) -> float:
    """CPU of the function for one event: a share per event, per record and per byte, through three measured events."""
    fixed, per_record, per_byte = _solve(
        [[1.0, each.records, each.records * each.record_bytes, each.cpu_ms] for each in MEASURED_EVENTS]
    )
    return fixed + per_record * records + per_byte * value_bytes


def event_seconds(load: ReplicationLoad, assumptions: Assumptions = _DEFAULTS) -> float:
    """Of the function for an event, on average: its CPU at the share that its memory gives, and what it waits for."""
    events = events_per_second(load, assumptions)
    if not events:
        return 0.0
    records = load.topics * load.records_per_topic
    cpu = event_cpu_ms(records / events, load.mb_per_second * 1e6 / events)
    return (cpu / cpu_share(assumptions.memory_gb, assumptions) + assumptions.wait_ms) / 1000


def events_per_second(workload: ReplicationLoad, assumptions: Assumptions = _DEFAULTS) -> float:
    """How often the function is invoked: when an event is full, or a poller's window ends with something in it."""
    per_topic = workload.records_per_topic
    full = per_topic / records_per_event(workload, assumptions)
    ended = min(per_topic, _pollers(workload, assumptions) / assumptions.window_seconds)
    return workload.topics * max(full, ended)


def records_per_event(workload: ReplicationLoad, assumptions: Assumptions = _DEFAULTS) -> float:
    """Records of a full event."""
    wire = workload.record_bytes * 4 / 3 + assumptions.record_overhead_bytes
    return min(assumptions.event_records, assumptions.event_bytes / wire)


def mirrorless(workload: ReplicationLoad, mode: Mode, assumptions: Assumptions = _DEFAULTS) -> dict[str, float]:
    """Dollars a month by part, of a flow whose topics all have mappings."""
    return together(mapped([workload], mode, assumptions), shared([workload], assumptions))


def together(*costs: Mapping[str, float]) -> dict[str, float]:
    """The sums of several costs by part, in the order of `PARTS`."""
    return {part: sum(each.get(part, 0.0) for each in costs) for part in PARTS}


def mapped(loads: Sequence[ReplicationLoad], mode: Mode, assumptions: Assumptions = _DEFAULTS) -> dict[str, float]:
    """Dollars a month by part of topics with mappings, beside what their flow costs by itself."""
    pollers = _units(loads, assumptions) * HOURS * PRICES.event_poller_unit_hour if mode == "provisioned" else 0.0
    return together({"pollers": pollers}, *(_mapped(load, assumptions) for load in loads))


def _mapped(load: ReplicationLoad, assumptions: Assumptions) -> dict[str, float]:
    """Of like topics, without their pollers."""
    events = events_per_second(load, assumptions)
    records = load.topics * load.records_per_topic
    busy = events * event_seconds(load, assumptions)
    lanes = min(load.partitions / _pollers(load, assumptions), records / events) if events else 0.0
    entries = events * min(lanes, load.slices_per_topic) if events else 0.0
    metrics = load.topics * assumptions.metrics_per_topic if events else 0.0
    lines = min(events, load.topics * _pollers(load, assumptions) / assumptions.log_line_seconds)
    return together(
        {
            "functions: time": busy * assumptions.memory_gb * SECONDS * PRICES.lambda_gb_second[ARCHITECTURE],
            "functions: calls": events * SECONDS * PRICES.lambda_request,
            "offset map: reads": state_reads([load], assumptions),
            "metrics, alarms, logs": observation(
                metrics=metrics, log_bytes=lines * SECONDS * assumptions.log_line_bytes
            ),
        },
        written(entries, events * lanes / entries if entries else 0.0, load, assumptions),
    )


def written(
    entries: float, lanes: float, load: ReplicationLoad, assumptions: Assumptions = _DEFAULTS
) -> dict[str, float]:
    """Dollars a month of entries in the offset map: to write them, and to keep them.

    Args:
        entries: a second.
        lanes: of an entry that have a run in it.
        load: of like topics.
        assumptions: sizes, retention, copies.
    """
    size = entry_bytes(lanes, assumptions, others=max(0.0, min(load.partitions, SLICE_LANES) - lanes))
    units = entries * SECONDS * assumptions.writes_per_entry * ceil(size / 1024)
    stored_gb = entries * assumptions.retention_days * 86_400 * (size + assumptions.item_bytes) / 1e9
    tables = 1 + assumptions.copies
    gb_month = PRICES.dynamodb_storage_gb_month + PRICES.dynamodb_recovery_gb_month
    return {
        "offset map: writes": tables * units * PRICES.dynamodb_write_unit,
        "offset map: storage": tables * stored_gb * gb_month,
    }


def state_reads(loads: Sequence[ReplicationLoad], assumptions: Assumptions = _DEFAULTS) -> float:
    """Dollars a month of reading the states of lanes that carry records, again and again."""
    lanes = sum(load.topics * min(load.partitions, 60 * load.records_per_topic) for load in loads)
    return _MINUTES * lanes * assumptions.state_reads * PRICES.dynamodb_read_unit


def observation(*, metrics: float = 0.0, alarms: float = 0.0, composites: float = 0.0, log_bytes: float = 0.0) -> float:
    """Dollars a month of our own metrics, metrics that alarms read, alarms of alarms, and bytes that are logged."""
    return (
        metrics * PRICES.cloudwatch_metric_month
        + alarms * PRICES.cloudwatch_alarm_month
        + composites * PRICES.cloudwatch_composite_month
        + log_bytes / 1e9 * PRICES.cloudwatch_logs_gb
    )


def shared(loads: Sequence[ReplicationLoad], assumptions: Assumptions = _DEFAULTS) -> dict[str, float]:
    """Dollars a month by part of what a flow has once: scheduled functions, heartbeats, metrics, a dashboard."""
    moving = any(load.mb_per_second for load in loads)
    minute = assumptions.moving_log_bytes if moving else assumptions.idle_log_bytes
    slices = sum(load.topics * load.slices_per_topic for load in loads)
    return {
        "scheduled functions": _scheduled(slices, assumptions, moving=moving),
        "heartbeats": heartbeats(assumptions),
        "metrics, alarms, logs": observation(
            metrics=assumptions.metrics_per_flow + (assumptions.metrics_of_records if moving else 0.0),
            alarms=assumptions.alarms,
            composites=assumptions.composite_alarms,
            log_bytes=_MINUTES * minute,
        ),
        "dashboard": assumptions.dashboards * PRICES.cloudwatch_dashboard_month,
    }


def scheduled(workload: ReplicationLoad, assumptions: Assumptions = _DEFAULTS, *, moving: bool) -> float:
    """Dollars a month of the two functions that a schedule starts once a minute, with what they read and write.

    Args:
        workload: its slices are read in rounds.
        assumptions: the interval of heartbeats among them.
        moving: whether consumer groups move, all of them.
    """
    return _scheduled(workload.topics * workload.slices_per_topic, assumptions, moving=moving)


def _scheduled(slices: int, assumptions: Assumptions, *, moving: bool) -> float:
    rounds = assumptions.rounds if moving else 1.0
    often = rounds > 1 or assumptions.heartbeat_seconds < 60  # noqa: PLR2004 -- the schedule's interval
    reads = min(rounds * slices, 60 * assumptions.slices_per_second)
    # A run that is not kept for its whole window ends with its round, which reads at its pace.
    ended = assumptions.idle_seconds + (reads / assumptions.slices_per_second if moving else 0.0)
    seconds = (assumptions.moving_seconds if often else ended) + assumptions.refresh_seconds
    per_round = (assumptions.moving_writes - assumptions.idle_writes) / assumptions.group_commits
    moved = per_round * min(rounds, assumptions.group_commits) if moving else 0.0
    writes = (assumptions.idle_writes + moved) * (1 + assumptions.copies)
    return _MINUTES * (
        seconds * assumptions.scheduled_gb * PRICES.lambda_gb_second[ARCHITECTURE]
        + 2 * (PRICES.lambda_request + PRICES.scheduler_call)
        + (reads + assumptions.document_reads) * PRICES.dynamodb_read_unit
        + writes * PRICES.dynamodb_write_unit
    )


def standby(assumptions: Assumptions = _DEFAULTS) -> float:
    """Dollars a month of a function `control` that stands by in the target's region, with its alarms."""
    return observation(alarms=assumptions.standby_alarms) + _MINUTES * (
        assumptions.standby_seconds * assumptions.scheduled_gb * PRICES.lambda_gb_second[ARCHITECTURE]
        + PRICES.lambda_request
        + PRICES.scheduler_call
        + PRICES.dynamodb_read_unit
        # The home's time, and its own.
        + 2 * (1 + assumptions.copies) * PRICES.dynamodb_write_unit
    )


def heartbeats(assumptions: Assumptions = _DEFAULTS) -> float:
    """Dollars a month of replicating a flow's heartbeats: each is an event of one record."""
    share = cpu_share(assumptions.memory_gb, assumptions)
    seconds = (event_cpu_ms(1, 100) / share + assumptions.wait_ms) / 1000
    writes = assumptions.writes_per_entry * (1 + assumptions.copies)
    event = (
        seconds * assumptions.memory_gb * PRICES.lambda_gb_second[ARCHITECTURE]
        + PRICES.lambda_request
        + writes * PRICES.dynamodb_write_unit
    )
    return SECONDS / assumptions.heartbeat_seconds * event


def cpu_share(memory_gb: float, assumptions: Assumptions = _DEFAULTS) -> float:
    """The share of a vCPU that a function of so much memory has; more than one helps no single thread."""
    return min(1.0, memory_gb / assumptions.vcpu_gb)


def entry_bytes(runs: float, assumptions: Assumptions = _DEFAULTS, *, others: float = 0) -> float:
    """Bytes of an entry with so many runs, without what DynamoDB adds to an item. Others: lanes without a run in it."""
    if runs >= assumptions.packed_from_runs:
        links = assumptions.packed_bytes + runs * assumptions.packed_run_bytes
    else:
        links = runs * assumptions.run_bytes
    return assumptions.entry_bytes + links + others * assumptions.head_bytes


MM2_RECORD_SECONDS: Final = {100: 1 / 291_000, 1_000: 1 / 115_000}
"""CPU of a record of so many bytes, exactly once and tuned: `make bench`, medians on six partitions."""


def msk_replicator(workload: ReplicationLoad) -> float:
    """Dollars a month, of bytes as they stand in the log. One takes 750 topics, by its documentation."""
    replicators = max(1, ceil(workload.topics / 750))
    return replicators * HOURS * PRICES.msk_replicator_hour + workload.gb_month() * PRICES.msk_replicator_gb


def msk_connect(workload: ReplicationLoad) -> float:
    """Dollars a month of MirrorMaker 2's three connectors: two have a unit each, and the first is half busy at most."""
    small, large = MM2_RECORD_SECONDS.values()
    per_record = small + (large - small) * (workload.record_bytes - 100) / 900
    vcpu = workload.mb_per_second * 1e6 / workload.record_bytes * per_record
    return (max(1, ceil(vcpu / 0.5)) + 2) * HOURS * PRICES.msk_connect_mcu_hour


def _pollers(workload: ReplicationLoad, assumptions: Assumptions) -> float:
    """Of one topic that are busy."""
    wanted = ceil(workload.mb_per_second / workload.topics / assumptions.poller_mb_per_second)
    return min(max(1, wanted), workload.partitions)


def _units(loads: Sequence[ReplicationLoad], assumptions: Assumptions) -> int:
    """Event poller units of the groups that hold these mappings."""
    groups = ceil(sum(load.topics for load in loads) / MAPPINGS_OF_A_GROUP)
    if not groups:
        return 0
    pollers = sum(load.topics * _pollers(load, assumptions) for load in loads)
    by_number = pollers / groups / assumptions.unit_pollers
    by_rate = sum(load.mb_per_second for load in loads) / groups / assumptions.unit_mb_per_second
    return groups * max(1, ceil(by_number), ceil(by_rate))


def _solve(rows: list[list[float]]) -> list[float]:
    """Three equations in three unknowns, each row its coefficients and its right side (Gauss)."""
    rows = [list(row) for row in rows]
    for i in range(len(rows)):
        pivot = max(range(i, len(rows)), key=lambda k: abs(rows[k][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        for k in range(len(rows)):
            if k != i:
                factor = rows[k][i] / rows[i][i]
                rows[k] = [a - factor * b for a, b in zip(rows[k], rows[i], strict=True)]
    return [row[-1] / row[i] for i, row in enumerate(rows)]
