"""The forecast of a flow that is to be deployed: what it makes, costs and how long records take, in two lines."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, isfinite
from typing import TYPE_CHECKING, Any, Final

from cli.plan import billed, mappings_of, shards_of
from infra.monitoring.alarms import alarms, pull_alarms, standby_alarms
from infra.validation import NEW_TABLE_WRITES, TABLE_WRITES, FlowCounts, flow_counts
from mirrorless.cost.bill import SECONDS, MappingSettings, ReplicationLoad, standby
from mirrorless.cost.options import Goal, Option, option
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What a flow makes and costs at a rate that is assumed.

    Attributes:
        mb_per_second: of the flow.
        topics: that carry it.
        counts: what AWS limits.
        alarms: of the flow.
        dollars: a month.
        idle: dollars a month while nothing is written to the source.
        seconds: of a record from source to target, at the 99th percentile.
        window: the same with a batching window of `OTHER_WINDOW` seconds; None where no topic is mapped, or it is set.
        writes: write units a second of the tables.
    """

    mb_per_second: float
    topics: int
    counts: FlowCounts
    alarms: int
    dollars: float
    idle: float
    seconds: float
    window: tuple[float, float] | None
    writes: float

    @property
    def lines(self) -> list[str]:
        """The two lines, and one more where a table would be throttled."""
        made = f"{numbered(self.counts.mappings, 'mapping')} and {numbered(self.alarms, 'alarm')} in templates"
        price = f"${self.dollars:,.0f} a month at {self.mb_per_second:g} MB/s in {numbered(self.topics, 'topic')}"
        first = f"  forecast: {made}; about {price}, ${self.idle:,.0f} idle"
        second = f"  latency: {_seconds(self.seconds)} (p99); {self.writes:,.0f} DynamoDB write units/s"
        if self.window:
            dollars, seconds = self.window
            second += (
                f"; ${dollars:,.0f} and {_seconds(seconds)} with `maximum.batching.window.seconds: {OTHER_WINDOW}`"
            )
        return [first, second, *throttled(self.writes)]

    def json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "mb_per_second": self.mb_per_second,
            "topics": self.topics,
            "mappings": self.counts.mappings,
            "alarms": self.alarms,
            "dollars_a_month": round(self.dollars, 2),
            "dollars_a_month_idle": round(self.idle, 2),
            "p99_seconds": round(self.seconds, 2) if isfinite(self.seconds) else None,
            "write_units_per_second": ceil(self.writes),
            "schedule_input_bytes": self.counts.input_bytes,
            "policies_of_a_role": self.counts.policies,
            "policy_characters_of_a_role": self.counts.policy_characters,
        }


def forecast(deployment: Deployment, flow: FlowDeployment, *, mb_per_second: float) -> Forecast:
    """Forecast one flow. Args: mb_per_second: of all its topics together."""
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
    other = None
    if by_mapping and mapping.window is None:
        other = at(mb_per_second, MappingSettings(mode=mapping.mode, window=OTHER_WINDOW))
    writes = expected.parts["offset map: writes"] / DYNAMODB_WRITE_UNIT / SECONDS
    return Forecast(
        mb_per_second=mb_per_second,
        topics=topics,
        counts=flow_counts(deployment, flow),
        alarms=_alarms(deployment, flow),
        dollars=expected.dollars + beside,
        idle=idle.dollars + beside,
        seconds=expected.p99,
        window=(other.dollars + beside, other.p99) if other else None,
        writes=writes,
    )


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
