"""The faults of links and of DynamoDB: bad while they last, and undone after."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast, get_args

import pytest

from lab.cloud import Lab
from lab.faults.degradations import FARTHEST_MS, NARROWEST, Degradations
from lab.faults.schedule import DynamoDbFault, FaultKind, PlannedFault
from lab.servers.dynamodb_proxy import DynamoDbProxy
from lab.servers.process import free_port
from lab.servers.proxy import NetworkLink
from mirrorless.lane import FlowName

FLOW = FlowName("east", "west")


@pytest.fixture
def links() -> Iterator[dict[str, NetworkLink]]:
    opened = {alias: NetworkLink({free_port(): free_port()}) for alias in (FLOW.source, FLOW.target)}
    for link in opened.values():
        link.open()
    yield opened
    for link in opened.values():
        link.close()


@pytest.fixture
def proxy() -> DynamoDbProxy:
    return DynamoDbProxy(free_port(), free_port())


@pytest.fixture
def degradations(links: dict[str, NetworkLink], proxy: DynamoDbProxy) -> Degradations:
    clusters = {alias: SimpleNamespace(link=link) for alias, link in links.items()}
    lab: Any = SimpleNamespace(clusters=clusters, dynamodb=SimpleNamespace(proxy=proxy))
    return Degradations(lab=cast("Lab", lab), flow=FLOW)


def fault(kind: FaultKind, *, part: float = 0.5, seconds: float = 0.2) -> PlannedFault:
    return PlannedFault(at=0.0, kind=kind, step="planned", seconds=seconds, part=part)


def properties(link: NetworkLink) -> tuple[float, float, float | None, bool, bool]:
    return link.round_trip_ms, link.jitter_ms, link.bytes_per_second, link.refusing, link.carrying


UNDEGRADED = (0.0, 0.0, None, False, True)


@pytest.mark.parametrize(
    ("kind", "part", "meanwhile"),
    [
        ("distant source", 1.0, (FARTHEST_MS, FARTHEST_MS / 4, None, False, True)),
        ("distant target", 0.5, (FARTHEST_MS / 2, FARTHEST_MS / 8, None, False, True)),
        ("narrow link to source", 0.0, (0.0, 0.0, NARROWEST, False, True)),
        ("narrow link to target", 1.0, (0.0, 0.0, 10 * NARROWEST, False, True)),
        ("cut link to source", 0.4, (0.0, 0.0, None, False, False)),
        ("cut link to target", 0.6, (0.0, 0.0, None, True, True)),
    ],
)
def test_a_link_is_bad_for_its_seconds_and_the_other_is_not(
    degradations: Degradations,
    links: dict[str, NetworkLink],
    kind: FaultKind,
    part: float,
    meanwhile: tuple[float, float, float | None, bool, bool],
) -> None:
    here, there = (FLOW.source, FLOW.target) if kind.endswith("source") else (FLOW.target, FLOW.source)
    planned = fault(kind, part=part)
    carried_out = threading.Thread(target=degradations.carry_out, args=(planned,))

    began = time.monotonic()
    carried_out.start()
    seen = set()
    while carried_out.is_alive():
        seen.add(properties(links[here]))
        assert properties(links[there]) == UNDEGRADED
        carried_out.join(0.01)

    assert meanwhile in seen
    assert time.monotonic() - began >= planned.seconds
    assert properties(links[here]) == UNDEGRADED


def test_faults_of_one_link_come_one_after_the_other(degradations: Degradations, links: dict[str, NetworkLink]) -> None:
    """The first to end would undo what the second has begun."""
    faults = [fault("distant target", part=0.5), fault("distant target", part=1.0)]
    threads = [threading.Thread(target=degradations.carry_out, args=(each,)) for each in faults]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert time.monotonic() - began >= sum(each.seconds for each in faults)
    assert properties(links[FLOW.target]) == UNDEGRADED


@pytest.mark.parametrize("kind", get_args(DynamoDbFault))
def test_dynamodb_misbehaves_for_its_seconds(degradations: Degradations, proxy: DynamoDbProxy, kind: FaultKind) -> None:
    carried_out = threading.Thread(target=degradations.carry_out, args=(fault(kind, seconds=0.1),))

    carried_out.start()
    seen = False
    while carried_out.is_alive():
        seen = seen or proxy.draw("BatchGetItem") is not None
        carried_out.join(0.001)

    assert seen
    assert [proxy.draw("BatchGetItem") for _ in range(20)] == [None] * 20
