"""What does a job's run on EMR Serverless cost, about? Its workers' cores and memory, by the hour, at list prices.

Not in it: what it reads and writes in DynamoDB, traffic between regions, S3, logs. Prices stand in prices.json.
"""

from __future__ import annotations

import math
from functools import cache
from importlib.resources import files
from typing import Final, Literal

import msgspec

Architecture = Literal["arm64", "x86_64"]


class Worker(msgspec.Struct, frozen=True, kw_only=True):
    """The size of a Spark worker on EMR Serverless, which has only some sizes: 2 cores come with 4 to 16 GB."""

    cores: int
    memory: int
    """GB of the JVM's heap."""
    overhead: int
    """GB beside it: Python, and what its libraries hold."""

    @property
    def gb(self) -> int:
        """All of its memory, as it is paid."""
        return self.memory + self.overhead


DRIVER: Final = Worker(cores=2, memory=3, overhead=1)
"""It plans, and asks Kafka for offsets."""

EXECUTOR: Final = Worker(cores=2, memory=3, overhead=3)
"""Two lanes at a time: the Python workers hold the records, outside of the JVM's heap."""

LEAST_SECONDS = 60
"""What each worker is charged for at least."""

START_SECONDS = 120
"""From a start until lanes run, about: an application that is idle has no workers. Measured by nobody here."""


class Prices(msgspec.Struct, frozen=True):
    """`prices.json`: dollars, by architecture."""

    as_of: str
    region: str
    vcpu_hour: dict[Architecture, float]
    gb_hour: dict[Architecture, float]


@cache
def prices() -> Prices:
    """The list prices that estimates go by."""
    return msgspec.json.decode(files("mirrorless.jobs").joinpath("prices.json").read_bytes(), type=Prices)


def executors_for(lanes: int, *, most: int) -> int:
    """How many executors a job of so many lanes makes use of, of those that it may have."""
    return max(1, min(most, math.ceil(lanes / EXECUTOR.cores)))


def dollars(seconds: float, *, executors: int, architecture: Architecture = "arm64") -> float:
    """What a driver and so many executors cost that run so long."""
    hours = max(LEAST_SECONDS, seconds) / 3600
    return hours * (dollars_per_hour(DRIVER, architecture) + executors * dollars_per_hour(EXECUTOR, architecture))


def dollars_per_hour(worker: Worker, architecture: Architecture = "arm64") -> float:
    """What one worker costs an hour."""
    price = prices()
    return worker.cores * price.vcpu_hour[architecture] + worker.gb * price.gb_hour[architecture]
