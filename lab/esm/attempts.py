"""One invocation attempt of a batch: invoke, and judge.

Nothing here touches the consumer or the poller's state: an attempt ends with a verdict, which the poller lands, or
ignores if the partitions are no longer its own. A zombie therefore keeps its thread, and never the poller's.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lab.esm.batches import Verdict, judge
from lab.esm.event import encode_event
from lab.functions.invocation import Invocation

if TYPE_CHECKING:
    from collections.abc import Callable

    from lab.esm.batches import BatchPart
    from lab.esm.behaviour import LabBehaviour
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
    behaviour: LabBehaviour
    journal: Journal
    faults: PendingFaults


def attempt(wiring: MappingParts, piece: BatchPart) -> Verdict:
    """Invoke the function with this piece, or pass it over if it fits into no event. Blocks."""
    if piece.condition:
        problem = f"PROBLEM: {piece.condition}"
        if wiring.behaviour.oversize == "stand":
            return Verdict(again=(piece,), problem=problem)
        _pass_over(wiring, piece)
        return Verdict(resolved=piece.records, problem=problem)
    event = encode_event(wiring.source, piece.records)
    if wiring.faults.strikes("duplicate_concurrently"):
        threading.Thread(target=_call, args=(wiring, event, piece), daemon=True).start()
    elif wiring.faults.strikes("duplicate"):
        _call(wiring, event, piece)
    options = wiring.options
    return judge(piece, _call(wiring, event, piece), partial_response=options.partial_response, topic=options.topic)


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


def _pass_over(wiring: MappingParts, piece: BatchPart) -> None:
    first, lost = piece.records[0], len(piece.records)
    wiring.journal.count("Dropped", lost)
    wiring.journal.note("WARN", piece.condition, records=lost, partition=first.partition, firstOffset=first.offset)
