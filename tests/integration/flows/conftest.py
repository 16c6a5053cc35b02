"""One lab for all fault tests of this folder: two real clusters, DynamoDB Local, the function out of its bundle.

The two flows differ in what a deployment may choose. Forth: provisioned pollers, partial batch response, and
transactions that the broker ends soon. Back: on-demand pollers, no partial batch response, and transactions that
outlive an invocation, so that a zombie still has its own open when it wakes. The clusters differ in their version: each
is the source of one flow and the target of the other.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from lab.cloud import Lab
from lab.esm.behaviour import LabBehaviour
from lab.servers.artifacts import DEFAULT_KAFKA
from mirrorless.config.loading import load
from tests.support.flow_stage import Stage

CONFIGURATION = """
clusters:
  us-east: {bootstrap.servers: us-east.example.com:9092, region: us-east-1}
  eu-west: {bootstrap.servers: eu-west.example.com:9092, region: eu-west-1}
defaults:
  topics: [orders]
  mapping: {batch.size: 100, maximum.batching.window.seconds: 0}
flows:
  us-east->eu-west:
    transaction.timeout.ms: 2000
  eu-west->us-east:
    transaction.timeout.ms: 15000
    mapping: {mode: on-demand}
"""

OLDEST = "3.9.1"
"""The last version before Kafka 4, and the oldest that runs here."""

TIMEOUT_SECONDS = 4.0
"""Of an invocation: between the two transaction timeouts."""


@pytest.fixture(scope="package")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    lab = Lab(
        configuration=load(CONFIGURATION),
        folder=tmp_path_factory.mktemp("flows"),
        kafka_version=os.environ.get("KAFKA") or DEFAULT_KAFKA,
        kafka_versions={"eu-west": OLDEST},
        behaviour=LabBehaviour(retry_max_s=1.0),
        inject_faults=True,
        control=False,
        zombies=True,
        timeout_seconds=TIMEOUT_SECONDS,
    )
    try:
        lab.start_servers()
        lab.create_topics(1)
        lab.start_flows()
        yield lab
    finally:
        lab.stop()


@pytest.fixture
def stage(lab: Lab) -> Iterator[Stage]:
    """A topic of the flow forth."""
    yield from _stage(lab, "us-east->eu-west")


@pytest.fixture
def stage_back(lab: Lab) -> Iterator[Stage]:
    """A topic of the flow back."""
    yield from _stage(lab, "eu-west->us-east")


def _stage(lab: Lab, flow: str) -> Iterator[Stage]:
    stage = Stage.open(lab, next(each for each in lab.flows if str(each.name) == flow))
    try:
        yield stage
    finally:
        stage.close()
