"""Hourly cost of a flow as metric math over CloudWatch's own counts, by list prices.

An estimate to see a change by, not a bill. Not in it: Kafka, traffic between regions, storage, backups, logs, metrics,
alarms and jobs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from infra.monitoring import metrics
from mirrorless.cost.prices import PRICES
from mirrorless.naming import PULL
from mirrorless.scheduled.functions import SCHEDULED

if TYPE_CHECKING:
    from infra.deployment import FlowDeployment
    from infra.monitoring.metrics import Metric

_FORWARDER: Final = "forward"


def memory_mb(flow: FlowDeployment) -> dict[str, int]:
    """The memory of each function of a flow that runs all the time, in MB, as far as metrics can be read at home."""
    found = {_FORWARDER: flow.flow.settings.function.memory_mb} | {each.name: each.memory_mb for each in SCHEDULED}
    if flow.pull is not None and flow.pull.account == flow.home.account:
        found[PULL] = flow.flow.settings.schedule.memory_mb
    return found


def inputs(flow: FlowDeployment) -> dict[str, Metric]:
    """The metrics that the expressions read, by their ids in it. Tables of another account are not readable here."""
    found = {}
    for part in memory_mb(flow):
        found[f"ms_{part}"] = metrics.of_function(flow, part, "Duration", "Sum")
        found[f"calls_{part}"] = metrics.of_function(flow, part, "Invocations", "Sum")
    if flow.state.account == flow.home.account:
        for table in flow.flow.tables:
            found[f"writes_{table}"] = metrics.of_table(flow, table, "ConsumedWriteCapacityUnits", "Sum")
            found[f"reads_{table}"] = metrics.of_table(flow, table, "ConsumedReadCapacityUnits", "Sum")
    return found


def functions_per_hour(flow: FlowDeployment) -> str:
    """Dollars per hour of the functions: the time that they ran, and the calls."""
    gb_second = PRICES.lambda_gb_second[flow.flow.settings.function.architecture]
    terms = [
        f"FILL(ms_{part}, 0) * {_plain(mb / 1024 / 1000 * gb_second)}"
        f" + FILL(calls_{part}, 0) * {_plain(PRICES.lambda_request)}"
        for part, mb in memory_mb(flow).items()
    ]
    return _per_hour(terms, clock=f"calls_{_FORWARDER}")


def tables_per_hour(flow: FlowDeployment) -> str | None:
    """Dollars per hour of requests to the tables. A replica pays for every write again; None for another account's."""
    if flow.state.account != flow.home.account:
        return None
    write = PRICES.dynamodb_write_unit * (2 if flow.replica_region else 1)
    read = PRICES.dynamodb_read_unit
    terms = [
        f"FILL(writes_{table}, 0) * {_plain(write)} + FILL(reads_{table}, 0) * {_plain(read)}"
        for table in flow.flow.tables
    ]
    return _per_hour(terms, clock="writes_control")


def pollers_per_hour() -> str:
    """Dollars per hour of the event poller units of all mappings of the region, which share them by groups."""
    units = metrics.over_mappings("EventPollerUnit", "Sum")
    return f"SUM({units}) * {_plain(PRICES.event_poller_unit_hour)}"


def _per_hour(terms: list[str], *, clock: str) -> str:
    return f"({' + '.join(terms)}) * 3600 / PERIOD({clock})"


def _plain(number: float) -> str:
    """Without an exponent: metric math is not documented to read one."""
    return f"{number:.16f}".rstrip("0").rstrip(".")
