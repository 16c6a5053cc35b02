"""The lab's schedule: it keeps its time, whatever the function does."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab.functions.invocation import Invocation, Status
from lab.functions.timer import Timer
from tests.support.flow_stage import eventually

EVENT = {"flow": {"flow": "a->b"}, "topics": ["käse"]}


@dataclass
class Function:
    """Answers as scripted, once it may."""

    status: Status = "success"
    error: Exception | None = None
    events: list[dict[str, Any]] = field(default_factory=list)
    may_answer: threading.Event = field(default_factory=threading.Event)

    def invoke(self, event: bytes) -> Invocation:
        """Remember the event, and answer when it is time."""
        self.events.append(json.loads(event))
        self.may_answer.wait()
        if self.error is not None:
            raise self.error
        return Invocation(status=self.status, payload=b'{"a": 1}', request_id="r", duration_ms=1.4)


@contextmanager
def running(function: Function, folder: Path, *, interval_s: float) -> Iterator[Timer]:
    timer = Timer(name="it", function=function, event=EVENT, interval_s=interval_s, log=folder / "logs" / "timer.jsonl")
    timer.start()
    try:
        yield timer
    finally:
        function.may_answer.set()
        timer.stop()


def lines(timer: Timer) -> list[dict[str, Any]]:
    """The lines of its log."""
    return [json.loads(line) for line in timer.log.read_text().splitlines()] if timer.log.exists() else []


def test_the_first_run_starts_at_once_and_gets_the_input(tmp_path: Path) -> None:
    function = Function()

    with running(function, tmp_path, interval_s=3600):
        eventually(lambda: function.events, "it is invoked")

    assert function.events == [EVENT]


def test_a_run_that_lasts_does_not_keep_the_next_from_starting(tmp_path: Path) -> None:
    function = Function()

    with running(function, tmp_path, interval_s=0.01):
        eventually(lambda: len(function.events) > 2, "three runs overlap")


def test_a_failed_run_is_logged_and_not_repeated(tmp_path: Path) -> None:
    function = Function(status="timeout")
    function.may_answer.set()

    with running(function, tmp_path, interval_s=3600) as timer:
        eventually(lambda: lines(timer), "a line in the log")

    assert len(function.events) == 1
    (line,) = lines(timer)
    assert line.pop("timestamp") > 1_600_000_000_000
    assert line == {"function": "it", "requestId": "r", "status": "timeout", "durationMs": 1, "payload": '{"a": 1}'}


def test_an_invoker_that_raises_does_not_stop_the_schedule(tmp_path: Path) -> None:
    function = Function(error=ValueError("too large"))
    function.may_answer.set()

    with running(function, tmp_path, interval_s=0.01) as timer:
        eventually(lambda: len(lines(timer)) > 1, "it goes on")

    assert {line["status"] for line in lines(timer)} == {"function_error"}
    assert "too large" in lines(timer)[0]["payload"]


def test_after_a_stop_nothing_runs_any_more(tmp_path: Path) -> None:
    function = Function()
    with running(function, tmp_path, interval_s=0.01) as timer:
        eventually(lambda: function.events, "it is invoked")

    assert len(lines(timer)) == len(function.events)
    assert not [thread for thread in threading.enumerate() if "run of it" in thread.name]
