"""An invocation as an event source mapping sees it: one call in, one outcome out.

The poller (`lab.esm.mappings`) and the function runtime (`lab.functions.function`) meet here and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

Status = Literal["success", "function_error", "timeout", "exited", "throttled"]
"""How an invocation ended: an answer, a raised error, a deadline, a dead process, or no free environment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """The outcome of one synchronous invocation.

    Attributes:
        status: how it ended.
        payload: the response body on success, the error body (JSON) otherwise.
        request_id: Lambda's id of this invocation.
        duration_ms: from the call to the outcome, in milliseconds.
    """

    status: Status
    payload: bytes
    request_id: str
    duration_ms: float


class Invoker(Protocol):
    """A function that can be invoked. Blocks until the outcome is known; called from many threads at once."""

    def invoke(self, event: bytes) -> Invocation:
        """Invoke with this event (UTF-8 JSON). A failing function is an outcome, never an exception."""
        ...
