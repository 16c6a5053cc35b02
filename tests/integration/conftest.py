"""Stages for tests that replicate in this process, on the servers of `tests/conftest.py`."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from lab.servers.dynamodb import DynamoDbLocal
from lab.servers.kafka import KafkaCluster
from lab.servers.process import running
from mirrorless.flow.naming import FLOW_VARIABLE
from mirrorless.flow.settings import FlowSettings, Tables
from mirrorless.protocol.replicate import Replicator
from tests.support import aws_recorder
from tests.support.flows import make_flow
from tests.support.guarded_cluster import guarded_clusters
from tests.support.integration_parts import PARTS, place
from tests.support.lane_stage import LaneStage

FOLDER = Path(__file__).parent


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--part`."""
    parser.addoption("--part", type=int, choices=range(len(PARTS)), help="only one part of tests/integration")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave the files of other parts unread; see `tests.support.integration_parts`."""
    part = config.getoption("part", default=None)  # unknown where this folder is not named on the command line
    if part is None or not collection_path.match("test_*.py"):
        return None
    return place(collection_path.relative_to(FOLDER).as_posix())[0] != part or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the tests of a part into its order."""
    if config.getoption("part", default=None) is not None:
        items.sort(key=lambda item: place(item.path.relative_to(FOLDER).as_posix())[1])


@pytest.fixture(scope="session", autouse=True)
def aws_calls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The calls of AWS, held against the recording at the end: a call that it lacks is an error.

    `make integration` names one folder for all parts, and looks at its end for what no part has called.
    """
    with pytest.MonkeyPatch.context() as patch, aws_recorder.recording(aws_recorder.note_call):
        if aws_recorder.FOLDER not in os.environ:
            patch.setenv(aws_recorder.FOLDER, str(tmp_path_factory.mktemp("aws-calls")))
        yield
        differences = aws_recorder.differences(aws_recorder.noted(), whole=False)
    assert differences == []


@pytest.fixture
def flow_settings(clusters: tuple[KafkaCluster, KafkaCluster], tables: Tables) -> FlowSettings:
    """A flow whose transactions end soon when they are left open."""
    source, target = clusters
    return make_flow(
        f"{source.alias}->{target.alias}",
        source=source.bootstrap,
        target=target.bootstrap,
        region="us-east-1",
        transaction_timeout_ms=2000,
        replication_factor=1,
        tables=tables,
    )


@pytest.fixture
def wire(
    flow_settings: FlowSettings, dynamodb: DynamoDbLocal, monkeypatch: pytest.MonkeyPatch
) -> Callable[[FlowSettings], Replicator]:
    """The forwarder's own wiring. Importing it wires it once for the environment that a cold start would make."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", dynamodb.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "lab")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "lab")
    monkeypatch.setenv(FLOW_VARIABLE, msgspec.json.encode(flow_settings).decode())
    wiring: Callable[[FlowSettings], Replicator] = importlib.import_module("forward").wire
    return wiring


@pytest.fixture
def stage(
    clusters: tuple[KafkaCluster, KafkaCluster],
    dynamodb: DynamoDbLocal,
    flow_settings: FlowSettings,
    wire: Callable[[FlowSettings], Replicator],
) -> Iterator[LaneStage]:
    """A flow with a topic name of its own; the topic is not there yet."""
    yield LaneStage.of(flow_settings, clusters, dynamodb.client(), wire)
    for server in (*clusters, dynamodb):
        server.start()  # whatever a failed test has left dead


@pytest.fixture(scope="session")
def distant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """A target behind a link."""
    cluster = KafkaCluster(alias="eu-west", folder=tmp_path_factory.mktemp("distant"), linked=True)
    with running(cluster):
        yield cluster


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[KafkaCluster, KafkaCluster]]:
    """Two clusters with an authorizer, on which we are a super user."""
    with guarded_clusters(tmp_path_factory.mktemp("guarded")) as both:
        yield both


@pytest.fixture
def far(stage: LaneStage, distant: KafkaCluster) -> Iterator[LaneStage]:
    """The stage with a target at a distance."""
    target = replace(stage.settings.target, bootstrap=distant.bootstrap)
    stage.settings = replace(stage.settings, target=target, transaction_timeout_ms=10_000)
    stage.target = distant
    yield stage
    distant.link.round_trip_ms = 0
