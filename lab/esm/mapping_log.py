"""The log of an event source mapping, with its counters and its last result; and the faults that a test has ordered."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from pathlib import Path

Fault = Literal["lose_ack", "duplicate", "duplicate_concurrently", "commit_failure"]


class MappingLog(logging.Handler):
    """One mapping's counters (named as AWS's metrics), LastProcessingResult, and log of JSON lines.

    It is a logging handler too, so that the Kafka client's own lines land in the same file.
    """

    def __init__(self, path: Path, *, uuid: str) -> None:
        super().__init__()
        self.path = path
        self.last_result = "No records processed"
        self._uuid = uuid
        self._counts: Counter[str] = Counter()
        self.client_log = logging.getLogger(f"lab.esm.mapping.{uuid}")
        self.client_log.propagate = False
        self.client_log.addHandler(self)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8")

    def count(self, metric: str, by: int = 1) -> None:
        """Add to a metric: Polled, Invoked, FailedInvoke, Dropped, Committed, …Error."""
        with self._locked():
            self._counts[metric] += by

    def counts(self) -> dict[str, int]:
        """All counters so far."""
        with self._locked():
            return dict(self._counts)

    def note(self, level: str, event: str, **facts: Any) -> None:
        """Write one line to the log."""
        line = {
            "timestamp": int(time.time() * 1000),
            "logLevel": level,
            "eventProcessorId": f"{self._uuid}/0",
            "type": event,
            **facts,
        }
        with self._locked():
            if not self._file.closed:  # a late zombie may outlive its mapping
                self._file.write(json.dumps(line, ensure_ascii=False, default=str) + "\n")
                self._file.flush()

    def problem(self, what: str, **facts: Any) -> None:
        """Something failed: remember it as the last result, in AWS's words, and log it."""
        self.last_result = what
        self.note("WARN", "ESM_PROCESSING_EVENT", error={"errorMessage": what}, **facts)

    def emit(self, record: logging.LogRecord) -> None:
        """Take over a line of the Kafka client."""
        self.note(record.levelname, "KAFKA_CLIENT", text=record.getMessage())

    def close(self) -> None:
        """Close the log."""
        self.client_log.removeHandler(self)
        with self._locked():
            self._file.close()
        super().close()

    def _locked(self) -> Any:
        # The handler's own re-entrant lock; logging always makes one.
        return self.lock or threading.RLock()


@dataclass(slots=True)
class PendingFaults:
    """Faults that wait for their moment; each strikes once.

    Attributes:
        held: while set, no new batch is invoked.
    """

    held: threading.Event = field(default_factory=threading.Event)
    _armed: list[Fault] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def arm(self, fault: Fault) -> None:
        """Let this fault happen at the next opportunity."""
        with self._lock:
            self._armed.append(fault)

    def strikes(self, fault: Fault) -> bool:
        """Whether this fault happens now."""
        with self._lock:
            if fault not in self._armed:
                return False
            self._armed.remove(fault)
            return True
