"""AWS's list prices: `prices.json`, with their date and their sources."""

from __future__ import annotations

from importlib.resources import files
from typing import Final, Literal

import msgspec

Architecture = Literal["arm64", "x86_64"]


class UncheckedPrices(msgspec.Struct, frozen=True):
    """Prices that were not read on AWS's own page, and why they stand here."""

    why: str
    prices: tuple[str, ...]


class JobPrices(msgspec.Struct, frozen=True):
    """Prices of EMR Serverless, of another date."""

    as_of: str
    vcpu_hour: dict[Architecture, float]
    gb_hour: dict[Architecture, float]


class Prices(msgspec.Struct, frozen=True, kw_only=True):
    """Dollars, by unit."""

    as_of: str
    region: str
    kind: str
    sources: dict[str, str]
    lambda_gb_second: dict[Architecture, float]
    lambda_request: float
    event_poller_unit_hour: float
    dynamodb_write_unit: float
    dynamodb_read_unit: float
    dynamodb_storage_gb_month: float
    dynamodb_recovery_gb_month: float
    scheduler_call: float
    cloudwatch_metric_month: float
    cloudwatch_alarm_month: float
    cloudwatch_composite_month: float
    cloudwatch_dashboard_month: float
    cloudwatch_logs_gb: float
    msk_replicator_hour: float
    msk_replicator_gb: float
    msk_connect_mcu_hour: float
    jobs: JobPrices
    unchecked: UncheckedPrices


PRICES: Final = msgspec.json.decode(files("mirrorless.cost").joinpath("prices.json").read_bytes(), type=Prices)
