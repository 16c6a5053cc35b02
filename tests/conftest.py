"""The real servers, started once for all tests that want them, and only if one does.

A test makes its own topics and tables. One that kills a broker brings it back before it ends; one that kills DynamoDB
Local has one of its own, on disk.
"""

from __future__ import annotations

import faulthandler
import gc
import os
from collections.abc import Iterator
from functools import cache
from uuid import uuid4

import botocore.session
import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key
from botocore.loaders import create_loader
from hypothesis import HealthCheck, settings

import infra  # noqa: F401 -- it chooses the Node that jsii starts on, before anybody imports aws_cdk
from lab.servers.artifacts import DEFAULT_KAFKA
from lab.servers.dynamodb import DynamoDbLocal
from lab.servers.kafka import KafkaCluster
from lab.servers.process import running
from mirrorless.flow.settings import Tables
from tests.support.running_servers import running_clusters, running_dynamodb
from tests.support.tries import tries

# Both limits are in seconds of the clock, and would fail a test for a machine that is busy.
settings.register_profile(
    "any-machine", deadline=None, max_examples=tries(30, many=100), suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any-machine")

# Every session of boto3 reads the models of its services anew, 50 ms of CPU; tests make hundreds of sessions.
botocore.session.create_loader = cache(create_loader)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Let a crash of the process show the thread that crashed: among dozens of others a log is cut before it."""
    faulthandler.enable(file=config.stash[fault_handler_stderr_fd_key], all_threads=False)


def pytest_collection_finish() -> None:
    """Let the collector of garbage pass over what stays to the end: it took 7 % of the CPU of the protocol's tests."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[KafkaCluster, KafkaCluster]]:
    """Source and target, of the version in `$KAFKA`."""
    if (lent := running_clusters()) is not None:
        yield lent
        return
    folder = tmp_path_factory.mktemp("clusters")
    version = os.environ.get("KAFKA") or DEFAULT_KAFKA
    source, target = (
        KafkaCluster(alias=alias, folder=folder / alias, version=version) for alias in ("us-east", "eu-west")
    )
    with running(source, target):
        yield source, target


@pytest.fixture(scope="session")
def dynamodb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DynamoDbLocal]:
    """DynamoDB Local without tables, which live as long as it runs."""
    if (there := running_dynamodb()) is not None:
        yield there
        return
    server = DynamoDbLocal(folder=tmp_path_factory.mktemp("dynamodb"), in_memory=True)
    with running(server):
        yield server


@pytest.fixture
def tables(dynamodb: DynamoDbLocal) -> Tables:
    """Empty tables of this test alone."""
    suffix = uuid4().hex[:8]
    kinds = ("offset_map", "lanes", "loss_ledger", "checkpoints", "control")
    named = Tables(**{kind: f"{kind}-{suffix}" for kind in kinds})
    dynamodb.create_tables(named)
    return named
