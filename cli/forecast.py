"""The forecast of a flow that is to be deployed: what it makes, costs and how long records take, in two lines."""

from __future__ import annotations

from math import ceil, isfinite
from typing import TYPE_CHECKING, Final

import msgspec

from cli.plan import billed, mappings_of, shards_of
from infra.monitoring.alarms import alarms, pull_alarms, standby_alarms
from infra.validation import NEW_TABLE_WRITES, TABLE_WRITES, flow_counts
from mirrorless.cost.bill import SECONDS, MappingSettings, ReplicationLoad, standby
from mirrorless.cost.plan import Goal, Option, option
from mirrorless.cost.prices import DYNAMODB_WRITE_UNIT
from mirrorless.flow.naming import PULL, STANDBY
from mirrorless.flow.triggers import SCHEDULE
from mirrorless.reports.format import numbered

if TYPE_CHECKING:
    from infra.deployment import Deployment, FlowDeployment

FOUND_TOPICS: Final = 10
"""Topics that patterns are taken to find."""

OTHER_WINDOW: Final = 5
"""Seconds of the batching window that the forecast is compared with."""


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """What a flow makes and costs at a rate that is assumed, as programs have it."""

    mb_per_second: float
    topics: int
    """That carry it."""
    mappings: int
    alarms: int
    dollars_a_month: float
    dollars_a_month_idle: float
    """While nothing is written to the source."""
    p99_seconds: float | None
    """Of a record from source to target; None where the flow falls behind."""
    write_units_per_second: int
    """Of the tables."""
    schedule_input_bytes: int
    policies_of_a_role: int
    policy_characters_of_a_role: int


def forecast(deployment: Deployment, flow: FlowDeployment, *, mb_per_second: float) -> tuple[Forecast, list[str]]:
    """Forecast one flow: for programs, and in lines. Args: mb_per_second: of all its topics together."""
    settings = flow.flow.settings
    scheduled = sum(flow.flow.triggers.of(topic) == SCHEDULE for topic in flow.flow.literal_topics)
    by_mapping = len(flow.flow.literal_topics) - scheduled
    if flow.flow.topic_patterns:
        by_mapping, scheduled = (
            (by_mapping, scheduled + FOUND_TOPICS)
            if settings.trigger == SCHEDULE
            else (by_mapping + FOUND_TOPICS, scheduled)
        )
    topics = by_mapping + scheduled
    goal = Goal(latency=0, settings=billed(settings, deployment.settings))

    def at(rate: float, mapping: MappingSettings) -> Option:
        mapped, pulled = (
            [ReplicationLoad(mb_per_second=rate * some / topics, topics=some)] if some else []
            for some in (by_mapping, scheduled)
        )
        return option(mapped, mapping, pulled, shards_of(settings), goal)

    mapping = mappings_of(settings)
    beside = standby(goal.settings) if flow.has(STANDBY) else 0.0
    expected, idle = at(mb_per_second, mapping), at(0, mapping)
    writes = expected.parts["offset map: writes"] / DYNAMODB_WRITE_UNIT / SECONDS
    counts = flow_counts(deployment, flow)
    found = Forecast(
        mb_per_second=mb_per_second,
        topics=topics,
        mappings=counts.mappings,
        alarms=_alarms(deployment, flow),
        dollars_a_month=round(expected.dollars + beside, 2),
        dollars_a_month_idle=round(idle.dollars + beside, 2),
        p99_seconds=round(expected.p99, 2) if isfinite(expected.p99) else None,
        write_units_per_second=ceil(writes),
        schedule_input_bytes=counts.input_bytes,
        policies_of_a_role=counts.policies,
        policy_characters_of_a_role=counts.policy_characters,
    )
    made = f"{numbered(found.mappings, 'mapping')} and {numbered(found.alarms, 'alarm')} in templates"
    price = f"${found.dollars_a_month:,.0f} a month at {mb_per_second:g} MB/s in {numbered(topics, 'topic')}"
    latency = f"{_seconds(expected.p99)} (p99); {writes:,.0f} DynamoDB write units/s"
    if by_mapping and mapping.window is None:
        other = at(mb_per_second, MappingSettings(mode=mapping.mode, window=OTHER_WINDOW))
        by_window = f"${other.dollars + beside:,.0f} and {_seconds(other.p99)}"
        latency += f"; {by_window} with `maximum.batching.window.seconds: {OTHER_WINDOW}`"
    return found, [
        f"  forecast: {made}; about {price}, ${found.dollars_a_month_idle:,.0f} idle",
        f"  latency: {latency}",
        *throttled(writes),
    ]


def throttled(writes: float) -> list[str]:
    """What DynamoDB says to so many write units a second."""
    if writes > TABLE_WRITES:
        return [f"  ! DynamoDB takes {TABLE_WRITES:,} write units/s in a table, unless the account asked for more"]
    if writes > NEW_TABLE_WRITES:
        return [f"  ! a new table takes {NEW_TABLE_WRITES:,} write units/s, and more by and by: begin with less"]
    return []


def _alarms(deployment: Deployment, flow: FlowDeployment) -> int:
    age = deployment.settings.alarms.record_age_seconds
    beside = len(pull_alarms(flow, record_age_seconds=age)) if flow.has(PULL) else 0
    beside += len(standby_alarms(flow)) if flow.has(STANDBY) else 0
    return len(alarms(flow, record_age_seconds=age)) + beside


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if isfinite(seconds) else "it falls behind"
