"""Monthly cost of replication: Mirrorless, MSK Replicator, and MirrorMaker 2 on MSK Connect.

Pure arithmetic on a workload, assumptions, prices and measured CPU. Not in it, because all pay it alike: the Kafka
clusters and bytes between regions (`transfer`). No free tier, no savings plans, no discounts.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Final, Literal

from mirrorless.cost.assumptions import (
    HOURS,
    MEASURED_EVENTS,
    MM2_RECORDS_PER_CPU_SECOND,
    Assumptions,
    ReplicationLoad,
)
from mirrorless.cost.prices import PRICES, Architecture
from mirrorless.lane import SLICE_LANES
from mirrorless.poller_groups import MAPPINGS_OF_A_GROUP

Mode = Literal["on-demand", "provisioned"]
"""Of the mappings. Provisioned: in as few poller groups as hold them."""

ARCHITECTURE: Final[Architecture] = "arm64"
_SECONDS = HOURS * 3600
_MINUTES = HOURS * 60
_DEFAULTS = Assumptions()
_GRID: Final = (0.0, *(10 ** (step / 50 - 3) for step in range(266)))


def event_cpu_ms(records: float, value_bytes: float) -> float:
    """CPU of the function for one event: a share per event, per record and per byte, through three measured events."""
    fixed, per_record, per_byte = _solve(
        [[1.0, each.records, each.records * each.record_bytes, each.cpu_ms] for each in MEASURED_EVENTS]
    )
    return fixed + per_record * records + per_byte * value_bytes


def events_per_second(workload: ReplicationLoad, assumptions: Assumptions = _DEFAULTS) -> float:
    """How often the function is invoked: when an event is full, or a poller's window ends with something in it."""
    per_topic = workload.mb_per_second * 1e6 / workload.record_bytes / workload.topics
    full = per_topic / records_per_event(workload, assumptions)
    ended = min(per_topic, _pollers(workload, assumptions) / assumptions.window_seconds)
    return workload.topics * max(full, ended)


def records_per_event(workload: ReplicationLoad, assumptions: Assumptions = _DEFAULTS) -> float:
    """Records of a full event."""
    wire = workload.record_bytes * 4 / 3 + assumptions.record_overhead_bytes
    return min(assumptions.event_records, assumptions.event_bytes / wire)


def mirrorless(workload: ReplicationLoad, mode: Mode, assumptions: Assumptions = _DEFAULTS) -> dict[str, float]:
    """Dollars a month by part."""
    events = events_per_second(workload, assumptions)
    records = workload.mb_per_second * 1e6 / workload.record_bytes
    busy = 0.0
    if events:
        cpu = event_cpu_ms(records / events, workload.mb_per_second * 1e6 / events)
        share = min(1.0, assumptions.memory_gb / assumptions.vcpu_gb)
        busy = events * (cpu / share + assumptions.wait_ms) / 1000
    lanes = min(workload.partitions / _pollers(workload, assumptions), records / events) if events else 0.0
    entries = events * min(lanes, ceil(workload.partitions / SLICE_LANES)) if events else 0.0
    size = entry_bytes(events * lanes / entries, assumptions) if entries else 0.0
    units = entries * _SECONDS * assumptions.writes_per_entry * ceil(size / 1024)
    stored_gb = entries * assumptions.retention_days * 86_400 * (size + assumptions.item_bytes) / 1e9
    gb_second = PRICES.lambda_gb_second[ARCHITECTURE]
    metrics = assumptions.metrics_per_flow
    if events:
        metrics += assumptions.metrics_of_records + workload.topics * assumptions.metrics_per_topic
    alarms = assumptions.alarms + (workload.topics * assumptions.alarms_per_mapping if mode == "provisioned" else 0)
    lines = min(events, workload.topics * _pollers(workload, assumptions) / assumptions.log_line_seconds)
    log_bytes = lines * _SECONDS * assumptions.log_line_bytes
    log_bytes += _MINUTES * (assumptions.moving_log_bytes if events else assumptions.idle_log_bytes)
    tables = 1 + assumptions.copies
    return {
        "functions: time": busy * assumptions.memory_gb * _SECONDS * gb_second,
        "functions: calls": events * _SECONDS * PRICES.lambda_request,
        "pollers": _units(workload, assumptions) * HOURS * PRICES.event_poller_unit_hour
        if mode == "provisioned"
        else 0.0,
        "offset map: writes": tables * units * PRICES.dynamodb_write_unit,
        "offset map: storage": tables
        * stored_gb
        * (PRICES.dynamodb_storage_gb_month + PRICES.dynamodb_recovery_gb_month),
        "scheduled functions": scheduled(workload, assumptions, moving=events > 0),
        "heartbeats": heartbeats(assumptions),
        "metrics, alarms, logs": metrics * PRICES.cloudwatch_metric_month
        + alarms * PRICES.cloudwatch_alarm_month
        + log_bytes / 1e9 * PRICES.cloudwatch_logs_gb,
        "dashboard": assumptions.dashboards * PRICES.cloudwatch_dashboard_month,
    }


def scheduled(workload: ReplicationLoad, assumptions: Assumptions = _DEFAULTS, *, moving: bool) -> float:
    """Dollars a month of the two functions that a schedule starts once a minute, with what they read and write.

    Args:
        workload: its slices are read in rounds.
        assumptions: the interval of heartbeats among them.
        moving: whether consumer groups move, all of them.
    """
    often = moving or assumptions.heartbeat_seconds < 60  # noqa: PLR2004 -- the schedule's interval
    seconds = (assumptions.moving_seconds if often else assumptions.idle_seconds) + assumptions.refresh_seconds
    slices = workload.topics * ceil(workload.partitions / SLICE_LANES)
    reads = min((assumptions.rounds if moving else 1) * slices, 60 * assumptions.slices_per_second)
    writes = (assumptions.moving_writes if moving else assumptions.idle_writes) * (1 + assumptions.copies)
    return _MINUTES * (
        seconds * assumptions.scheduled_gb * PRICES.lambda_gb_second[ARCHITECTURE]
        + 2 * (PRICES.lambda_request + PRICES.scheduler_call)
        + (reads + assumptions.document_reads) * PRICES.dynamodb_read_unit
        + writes * PRICES.dynamodb_write_unit
    )


def heartbeats(assumptions: Assumptions = _DEFAULTS) -> float:
    """Dollars a month of replicating a flow's heartbeats: each is an event of one record."""
    share = min(1.0, assumptions.memory_gb / assumptions.vcpu_gb)
    seconds = (event_cpu_ms(1, 100) / share + assumptions.wait_ms) / 1000
    writes = assumptions.writes_per_entry * (1 + assumptions.copies)
    event = (
        seconds * assumptions.memory_gb * PRICES.lambda_gb_second[ARCHITECTURE]
        + PRICES.lambda_request
        + writes * PRICES.dynamodb_write_unit
    )
    return _SECONDS / assumptions.heartbeat_seconds * event


def entry_bytes(runs: float, assumptions: Assumptions = _DEFAULTS) -> float:
    """Bytes of an entry with so many runs, without what DynamoDB adds to an item."""
    packed = runs >= assumptions.packed_from_runs
    return assumptions.entry_bytes + runs * (assumptions.packed_run_bytes if packed else assumptions.run_bytes)


def total(workload: ReplicationLoad, assumptions: Assumptions = _DEFAULTS, *, provisioned: bool = True) -> float:
    """Dollars a month of Mirrorless."""
    return sum(mirrorless(workload, "provisioned" if provisioned else "on-demand", assumptions).values())


def msk_replicator(workload: ReplicationLoad) -> float:
    """Dollars a month. It charges for bytes as they stand in the log, hence compressed."""
    gb = workload.gb_month() / workload.compression
    return HOURS * PRICES.msk_replicator_hour + gb * PRICES.msk_replicator_gb


def msk_connect(
    workload: ReplicationLoad, mm2: str = "exactly once, tuned", assumptions: Assumptions = _DEFAULTS
) -> float:
    """Dollars a month of MirrorMaker 2's three connectors."""
    rates = MM2_RECORDS_PER_CPU_SECOND[mm2]
    small, large = 1 / rates[100], 1 / rates[1_000]
    per_record = small + (large - small) * (workload.record_bytes - 100) / 900
    vcpu = workload.mb_per_second * 1e6 / workload.record_bytes * per_record
    units = max(1, ceil(vcpu / assumptions.mm2_utilisation)) + assumptions.mm2_other_connectors
    return units * HOURS * PRICES.msk_connect_mcu_hour


def transfer(workload: ReplicationLoad) -> float:
    """Dollars a month for bytes between two regions, which each of them pays."""
    return workload.gb_month() / workload.compression * PRICES.transfer_between_regions_gb


def backfill(gigabytes: float, assumptions: Assumptions = _DEFAULTS) -> float:
    """Dollars of a job on EMR Serverless that copies so much once."""
    vcpu_hours = gigabytes * 1000 / assumptions.backfill_mb_per_vcpu_second / 3600
    prices = PRICES.jobs
    per_hour = prices.vcpu_hour[ARCHITECTURE] + assumptions.backfill_gb_per_vcpu * prices.gb_hour[ARCHITECTURE]
    return vcpu_hours * per_hour


def break_even(
    workload: ReplicationLoad,
    assumptions: Assumptions,
    *,
    provisioned: bool,
    against: Callable[[ReplicationLoad], float],
) -> list[tuple[float, float | None]]:
    """The rates, in MB/s from 0 to 200, at which Mirrorless costs less: from, and to; None: the end of the range."""
    found: list[tuple[float, float | None]] = []
    cheaper = False
    for rate in _GRID:
        at = workload.at(rate)
        now = total(at, assumptions, provisioned=provisioned) <= against(at)
        if now and not cheaper:
            found.append((rate, None))
        elif cheaper and not now:
            found[-1] = (found[-1][0], rate)
        cheaper = now
    return found


def _pollers(workload: ReplicationLoad, assumptions: Assumptions) -> float:
    """Of one topic that are busy."""
    wanted = ceil(workload.mb_per_second / workload.topics / assumptions.poller_mb_per_second)
    return min(max(1, wanted), workload.partitions)


def _units(workload: ReplicationLoad, assumptions: Assumptions) -> int:
    groups = ceil(workload.topics / MAPPINGS_OF_A_GROUP)
    by_number = workload.topics / groups * _pollers(workload, assumptions) / assumptions.unit_pollers
    by_rate = workload.mb_per_second / groups / assumptions.unit_mb_per_second
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
