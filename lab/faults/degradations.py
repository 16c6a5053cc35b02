"""Links and a DynamoDB that work worse for some seconds: distance, width, cuts, throttling, errors, lost answers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from lab.cloud import Lab
from lab.faults.schedule import FaultKind, PlannedFault
from lab.servers.dynamodb_proxy import Misbehaviour, MisbehaviourKind
from lab.servers.proxy import NetworkLink
from mirrorless.lane import FlowName

FARTHEST_MS = 120.0
JITTER = 0.25
"""Of the round trip, more each way at most."""
NARROWEST = 60_000.0
"""Bytes in a second; the widest of the narrow links takes ten times as many."""
LATEST_SECONDS = 2.0
SILENT_BELOW = 0.5
"""The faults' `part` below which a cut is silent."""

MISBEHAVIOURS: Mapping[FaultKind, MisbehaviourKind] = {
    "DynamoDB throttles parts": "throttled parts",
    "DynamoDB throttles calls": "throttled call",
    "DynamoDB fails calls": "server error",
    "DynamoDB answers late": "slow answer",
    "DynamoDB loses answers": "lost answer",
}


@dataclass(slots=True, kw_only=True)
class Degradations:
    """Carries out the network's and DynamoDB's faults against one flow of a lab with links."""

    lab: Lab
    flow: FlowName
    _alone: Mapping[str, threading.Lock] = field(
        default_factory=lambda: {end: threading.Lock() for end in ("source", "target")}
    )
    """Of each link: its faults come one after the other."""

    def carry_out(self, fault: PlannedFault) -> None:
        """Begin one, wait for its seconds, end it."""
        with self._under_way(fault):
            threading.Event().wait(fault.seconds)  # the time in which it lasts

    @contextmanager
    def _under_way(self, fault: PlannedFault) -> Iterator[None]:
        if (kind := MISBEHAVIOURS.get(fault.kind)) is not None:
            with self._misbehaving(kind, fault.part):
                yield
            return
        end = "source" if fault.kind.endswith("source") else "target"
        link = self.lab.clusters[self.flow.source if end == "source" else self.flow.target].link
        begin, undo = _measures(link, fault)
        with self._alone[end]:
            begin()
            try:
                yield
            finally:
                undo()

    @contextmanager
    def _misbehaving(self, kind: MisbehaviourKind, part: float) -> Iterator[None]:
        misbehaviour = Misbehaviour(kind=kind, share=0.2 + 0.7 * part, seconds=LATEST_SECONDS * part)
        self.lab.dynamodb.proxy.begin(misbehaviour)
        try:
            yield
        finally:
            self.lab.dynamodb.proxy.end(misbehaviour)


def _measures(link: NetworkLink, fault: PlannedFault) -> tuple[Callable[[], None], Callable[[], None]]:
    """What begins a fault of a link, and what ends it."""

    def distance(round_trip_ms: float) -> None:
        link.round_trip_ms, link.jitter_ms = round_trip_ms, JITTER * round_trip_ms

    def width(bytes_per_second: float | None) -> None:
        link.bytes_per_second = bytes_per_second

    if fault.kind.startswith("cut"):
        return lambda: link.cut(silently=fault.part < SILENT_BELOW), link.restore
    if fault.kind.startswith("narrow"):
        return lambda: width(NARROWEST * 10**fault.part), lambda: width(None)
    return lambda: distance(FARTHEST_MS * fault.part), lambda: distance(0.0)
