"""One invocation attempt of a batch: invoke, judge, and deliver to the destination what is given up.

Nothing here touches the consumer or the poller's state: an attempt ends with a verdict, which the poller lands, or
ignores if the partitions are no longer its own. A zombie therefore keeps its thread, and never the poller's.
"""

from __future__ import annotations

import datetime as dt
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lab.esm.batches import PAYLOAD_TOO_LARGE, Verdict, judge
from lab.esm.destinations import DeliveryFailedError, GivenUp
from lab.esm.event import encode_event
from lab.functions.invocation import Invocation

if TYPE_CHECKING:
    from collections.abc import Callable

    from lab.esm.batches import BatchPart
    from lab.esm.behaviour import LabBehaviour
    from lab.esm.destinations import Destinations
    from lab.esm.event import EventSource
    from lab.esm.journal import Journal, PendingFaults
    from lab.esm.mapping_api import PollingOptions
    from lab.functions.invocation import Invoker


@dataclass(frozen=True, slots=True, kw_only=True)
class MappingParts:
    """What the pollers of one mapping share."""

    uuid: str
    bootstrap: str
    access: Callable[[], dict[str, Any]]
    """The client's authentication; its secrets are read anew for each session, so that a rotation is noticed."""
    options: PollingOptions
    source: EventSource
    function: Invoker
    function_arn: str
    destinations: Destinations
    behaviour: LabBehaviour
    journal: Journal
    faults: PendingFaults


def attempt(wiring: MappingParts, piece: BatchPart, *, attempts: int) -> Verdict:
    """Invoke the function with this piece, or give it up if it carries a condition. Blocks.

    Args:
        wiring: the mapping's parts.
        piece: what to deliver.
        attempts: how often the flight was invoked, this time included.
    """
    invocation: Invocation | None = None
    if piece.condition == PAYLOAD_TOO_LARGE and wiring.behaviour.oversize == "stand":
        verdict = Verdict(again=(piece,), problem=f"PROBLEM: {piece.condition}")
    elif piece.condition:
        verdict = Verdict(
            resolved=piece.records,
            given_up=piece.records,
            condition=piece.condition,
            problem=f"PROBLEM: {piece.condition}",
        )
    else:
        event = encode_event(wiring.source, piece.records)
        if wiring.faults.strikes("duplicate_concurrently"):
            threading.Thread(target=_call, args=(wiring, event, piece), daemon=True).start()
        elif wiring.faults.strikes("duplicate"):
            _call(wiring, event, piece)
        invocation = _call(wiring, event, piece)
        verdict = judge(piece, invocation, wiring.options.retries, topic=wiring.options.topic)
    if verdict.given_up:
        _give_up(wiring, verdict, attempts, invocation)
    return verdict


def _call(wiring: MappingParts, event: bytes, piece: BatchPart) -> Invocation:
    wiring.journal.count("Invoked", len(piece.records))
    try:
        invocation = wiring.function.invoke(event)
    except Exception as exc:  # noqa: BLE001  an invoker that breaks its contract must not stop the mapping
        invocation = Invocation(status="function_error", payload=repr(exc).encode(), request_id="", duration_ms=0.0)
    if invocation.status != "success":
        wiring.journal.count("FailedInvoke", len(piece.records))
        wiring.journal.count("InvokeError")
        error = invocation.payload[:2000].decode(errors="replace")
        wiring.journal.note("WARN", "INVOKE_FAILED", status=invocation.status, error=error)
    return invocation


def _give_up(wiring: MappingParts, verdict: Verdict, attempts: int, invocation: Invocation | None) -> None:
    lost = len(verdict.given_up)
    given_up = GivenUp(
        uuid=wiring.uuid,
        source=wiring.source,
        function_arn=wiring.function_arn,
        condition=verdict.condition,
        records=verdict.given_up,
        attempts=attempts,
        invocation=invocation,
        when=dt.datetime.now(dt.UTC),
    )
    first = verdict.given_up[0]
    place = {"records": lost, "partition": first.partition, "firstOffset": first.offset}
    if wiring.options.destination:
        try:
            wiring.destinations.deliver(wiring.options.destination, given_up)
        except DeliveryFailedError as exc:
            wiring.journal.count("OnFailureDestinationDeliveryError")
            wiring.journal.note("WARN", "DESTINATION_FAILED", error=str(exc))
        else:
            wiring.journal.count("OnFailureDestinationDelivered", lost)
            wiring.journal.note("WARN", verdict.condition, destination=wiring.options.destination, **place)
            return
    wiring.journal.count("Dropped", lost)
    wiring.journal.note("WARN", verdict.condition, destination="none: dropped", **place)
