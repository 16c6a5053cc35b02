"""AWS's list prices in dollars: the first tier, without free tier, savings plans or discounts.

Read on https://aws.amazon.com/lambda/pricing/, https://aws.amazon.com/dynamodb/pricing/on-demand/,
https://aws.amazon.com/cloudwatch/pricing/, https://aws.amazon.com/eventbridge/pricing/ and
https://aws.amazon.com/msk/pricing/. Those that are marked are from second sources: check them before you quote them.
"""

from __future__ import annotations

import math
from typing import Final, Literal

import msgspec

Architecture = Literal["arm64", "x86_64"]

AS_OF: Final = "2026-09-19"
REGION: Final = "us-east-1"
KIND: Final = "list price, first tier, without free tier, savings plans or discounts"

LAMBDA_GB_SECOND: Final[dict[Architecture, float]] = {"arm64": 1.33334e-05, "x86_64": 1.66667e-05}
LAMBDA_REQUEST: Final = 2e-07
EVENT_POLLER_UNIT_HOUR: Final = 0.185
DYNAMODB_WRITE_UNIT: Final = 6.25e-07
DYNAMODB_READ_UNIT: Final = 1.25e-07

# From second sources.
DYNAMODB_STORED_GB_MONTH: Final = 0.25 + 0.2
"""Of a table, and of its recovery to a point in time."""
SCHEDULER_CALL: Final = 1e-06
CLOUDWATCH_METRIC_MONTH: Final = 0.3
CLOUDWATCH_ALARM_MONTH: Final = 0.1
CLOUDWATCH_COMPOSITE_MONTH: Final = 0.5
CLOUDWATCH_DASHBOARD_MONTH: Final = 3.0
CLOUDWATCH_LOGS_GB: Final = 0.5
MSK_REPLICATOR_HOUR: Final = 0.3
MSK_REPLICATOR_GB: Final = 0.08
MSK_CONNECT_UNIT_HOUR: Final = 0.11

JOBS_AS_OF: Final = "2025-06"
"""Of EMR Serverless, https://aws.amazon.com/emr/pricing/; other regions cost up to a third more."""
JOBS_VCPU_HOUR: Final[dict[Architecture, float]] = {"arm64": 0.042094, "x86_64": 0.052624}
JOBS_GB_HOUR: Final[dict[Architecture, float]] = {"arm64": 0.004628, "x86_64": 0.0057785}


class Worker(msgspec.Struct, frozen=True, kw_only=True):
    """The size of a Spark worker on EMR Serverless, which has only some sizes: 2 cores come with 4 to 16 GB."""

    cores: int
    memory: int
    """GB of the JVM's heap."""
    overhead: int
    """GB beside it: Python, and what its libraries hold."""

    @property
    def gb(self) -> int:
        """All of its memory, as it is charged."""
        return self.memory + self.overhead


DRIVER: Final = Worker(cores=2, memory=3, overhead=1)
"""It plans, and reads offsets from Kafka."""

EXECUTOR: Final = Worker(cores=2, memory=3, overhead=3)
"""Two lanes at a time: the Python workers hold the records, outside of the JVM's heap."""

LEAST_SECONDS = 60
"""The least that each worker is charged for."""

START_SECONDS = 120
"""From a start until lanes run, estimated, not measured: an application that is idle has no workers."""


def executors_for(lanes: int, *, most: int) -> int:
    """The executors that a job of so many lanes uses, of the most that it may have."""
    return max(1, min(most, math.ceil(lanes / EXECUTOR.cores)))


def dollars(seconds: float, *, executors: int, architecture: Architecture = "arm64") -> float:
    """The cost of a driver and so many executors for so long."""
    hours = max(LEAST_SECONDS, seconds) / 3600
    return hours * (dollars_per_hour(DRIVER, architecture) + executors * dollars_per_hour(EXECUTOR, architecture))


def dollars_per_hour(worker: Worker, architecture: Architecture = "arm64") -> float:
    """The cost of one worker for an hour."""
    return worker.cores * JOBS_VCPU_HOUR[architecture] + worker.gb * JOBS_GB_HOUR[architecture]
