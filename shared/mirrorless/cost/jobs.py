"""The estimated cost of a job run on EMR Serverless: cores and memory of its workers, by the hour, at list prices.

DynamoDB, traffic between regions, S3 and logs are not in it.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from mirrorless.cost.prices import JOBS_GB_HOUR, JOBS_VCPU_HOUR, Architecture


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
