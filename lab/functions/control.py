"""A flow's scheduled functions in the lab: real functions, their inputs, and their timers.

A timer stands in for EventBridge Scheduler. An invocation is asynchronous: the schedule keeps its time however long the
function runs, so two runs may overlap, as they may at AWS. Unlike there, a run that fails is not repeated (Lambda
would, twice, unless configured otherwise) and the function is started at once, not after the first interval, so that a
lab is ready without a minute's wait.

A flow at home in another region than its target's has a standby, whose timer starts `control` with the input of that.
The function `pull` has a timer for each shard, by the interval of the flow's `schedule`, or every minute where that is
continuous.

A test that cannot wait for minutes gives other intervals by the names of FlowSettings and PullSettings, such as
`{"refresh_topics_interval_seconds": 1}` and `{"interval_seconds": 1}`.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from infra.packaging import bundle
from lab.functions.fault_orders import FAULTY_HANDLER, LAYER, FaultOrders
from lab.functions.function import LambdaFunction
from lab.functions.invocation import Invocation, Invoker
from mirrorless.config.flow import Flow
from mirrorless.errors import ConfigurationError
from mirrorless.flow.naming import FORWARD, PULL, STANDBY, pull_schedule
from mirrorless.flow.settings import FlowSettings, PullSettings, control_settings, pull_settings
from mirrorless.scheduled.functions import CONTROL, PULL_TIMEOUT_SECONDS, SCHEDULED, ScheduledFunction
from mirrorless.scheduled.runner import MINUTE


@dataclass(slots=True, kw_only=True)
class ControlPlane:
    """The scheduled functions of all flows. `stop` from any state."""

    folder: Path
    origin: str = ""
    """The path of replication.yaml."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """Of FlowSettings."""
    pull_overrides: Mapping[str, Any] = field(default_factory=dict)
    """Of PullSettings."""
    schedule_seconds: float = MINUTE
    pull_timeout_seconds: float = PULL_TIMEOUT_SECONDS
    pull_faults: FaultOrders | None = None
    """What `pull` obeys; None where it is left in peace."""
    zombies: bool = False
    """Whether a run of `pull` that times out goes on."""
    functions: dict[str, LambdaFunction] = field(default_factory=dict)
    timers: dict[str, Timer] = field(default_factory=dict)
    """By the names of functions, and of shards' schedules."""

    def deploy(self, flows: Sequence[Flow], *, variables: Mapping[str, str]) -> Mapping[str, LambdaFunction]:
        """Make the functions and their schedules; nothing runs yet.

        Args:
            flows: with clusters at addresses that answer.
            variables: of every function.

        Raises:
            ConfigurationError: an override is none of the settings.
        """
        for flow in flows:
            made = [self.function(flow, scheduled, variables) for scheduled in SCHEDULED]
            made += [self.function(flow, CONTROL, variables, STANDBY)] if flow.standby else []
            made += [self._reader(flow, variables)] if flow.has_pull else []
            self.functions |= {each.name: each for each in made}
            for name, event in self._events(flow).items():
                paced = "interval_seconds" in event and not event["continuous"]
                self.timers[name] = Timer(
                    name=name,
                    function=self.functions.get(name) or self.functions[flow.resource_name(PULL)],
                    event=event,
                    interval_s=event["interval_seconds"] if paced else self.schedule_seconds,
                    log=self.folder / "schedule" / f"{name}.jsonl",
                )
        return self.functions

    def change(self, flow: Flow) -> None:
        """Give the schedules of a flow its other settings, as a deployment does; runs under way keep the old ones.

        Raises:
            ConfigurationError: the flow has scheduled topics now and had none before.
        """
        events = self._events(flow)
        if unknown := sorted(events.keys() - self.timers.keys()):
            raise ConfigurationError(
                f"the lab was started without {', '.join(unknown)}",
                where=str(flow.name),
                hint="start it with a section `schedule` of the flow",
            )
        for name, each in events.items():
            self.timers[name].change(each)

    def _events(self, flow: Flow) -> dict[str, dict[str, Any]]:
        """The input of each schedule of a flow, by its name; what the functions would refuse is refused here."""
        control = _kept(flow.control_settings(flow.resource_name(FORWARD)), self.overrides)
        control_settings(control)
        events = {flow.resource_name(scheduled.name): control for scheduled in SCHEDULED}
        if flow.standby:
            standby = events[flow.resource_name(STANDBY)] = _kept(flow.standby_settings(), self.overrides)
            control_settings(standby)
        for shard in range(flow.settings.schedule.shards if flow.has_pull else 0):
            event = events[pull_schedule(flow.name, shard)] = _kept(flow.pull_settings(shard), self.pull_overrides)
            event["flow"] |= self.overrides
            pull_settings(event)
        return events

    def function(
        self, flow: Flow, scheduled: ScheduledFunction, variables: Mapping[str, str], part: str | None = None
    ) -> LambdaFunction:
        """One scheduled function of a flow; nothing runs yet. Args: part: of its name, if not its file."""
        return deployed(
            flow,
            scheduled.name,
            origin=self.origin,
            part=part,
            variables=variables,
            timeout_seconds=scheduled.timeout_seconds,
            memory_mb=scheduled.memory_mb,
            folder=self.folder / "functions",
        )

    def _reader(self, flow: Flow, variables: Mapping[str, str]) -> LambdaFunction:
        """The reader of a flow's scheduled topics."""
        schedule = flow.settings.schedule
        return deployed(
            flow,
            PULL,
            origin=self.origin,
            faults=self.pull_faults,
            variables=variables,
            timeout_seconds=self.pull_timeout_seconds,
            memory_mb=schedule.memory_mb,
            # A shard's runs overlap while one takes over from the other.
            concurrency=3 * schedule.shards,
            zombies=self.zombies,
            folder=self.folder / "functions",
        )

    def start(self) -> None:
        """Start every schedule: each function runs now, and by its interval."""
        for timer in self.timers.values():
            timer.start()

    def stop(self) -> None:
        """End the schedules, and the runs under way with their functions."""
        for timer in self.timers.values():
            timer.begin_stop()
        for function in self.functions.values():
            function.stop()
        for timer in self.timers.values():
            timer.stop()


def deployed(
    flow: Flow, file: str, *, origin: str, part: str | None = None, faults: FaultOrders | None = None, **options: Any
) -> LambdaFunction:
    """A function of a flow as a deployment names it, with its bundle; nothing runs yet.

    Args:
        flow: the flow.
        file: its file in `functions/`, without `.py`.
        origin: the path of replication.yaml.
        part: of its name, if not its file.
        faults: what it obeys; None where it is left in peace.
        options: the rest of `LambdaFunction`.
    """
    if faults is not None:
        options["variables"] = {**options["variables"], **faults.variables}
    return LambdaFunction(
        name=flow.resource_name(part or file),
        bundle=bundle.build(file, own=bundle.own_modules(flow.rules, origin)),
        handler=f"{file}.handler" if faults is None else FAULTY_HANDLER,
        layers=[] if faults is None else [LAYER],
        **options,
    )


def _kept(settings: FlowSettings | PullSettings, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """An input as a schedule keeps it, text, with other settings."""
    read: dict[str, Any] = json.loads(msgspec.json.encode(settings))
    return read | dict(overrides)


PAYLOAD_KEPT = 4_000
"""Bytes of an outcome in the log."""

_END_S = 10.0


class Timer:
    """Invokes one function with one input, from `start` until `begin_stop`.

    Args:
        name: the function's, for its log.
        function: what is invoked.
        event: its input.
        interval_s: from one start to the next.
        log: JSON lines, one for each outcome: timestamp (ms), function, requestId, status, durationMs, payload.
    """

    def __init__(self, *, name: str, function: Invoker, event: Mapping[str, Any], interval_s: float, log: Path) -> None:
        self.name = name
        self.log = log
        self._function = function
        self.change(event)
        self._interval_s = interval_s
        self._stopping = threading.Event()
        self._writing = threading.Lock()
        self._runs: list[threading.Thread] = []
        self._ticker = threading.Thread(target=self._tick, name=f"timer {name}", daemon=True)

    def change(self, event: Mapping[str, Any]) -> None:
        """Give the runs from now on another input."""
        self.event = json.dumps(event, ensure_ascii=False).encode()

    def start(self) -> None:
        """Invoke it for the first time, and go on."""
        self._ticker.start()

    def start_once(self) -> None:
        """Invoke it once more: a schedule starts its function at least once each time."""
        self._start_run()

    def begin_stop(self) -> None:
        """Start no further run; those under way go on."""
        self._stopping.set()

    def stop(self) -> None:
        """Wait for the runs under way: whoever does not want to wait for their timeout stops the function first."""
        self.begin_stop()
        if self._ticker.is_alive():
            self._ticker.join()
        for run in self._runs:
            run.join(_END_S)

    def _tick(self) -> None:
        due = time.monotonic()
        while not self._stopping.is_set():
            self._start_run()
            # The next moment of the schedule that is still to come: what a sleeping machine missed is not made up for.
            due += self._interval_s * max(1, -(-(time.monotonic() - due) // self._interval_s))
            self._stopping.wait(due - time.monotonic())

    def _start_run(self) -> None:
        run = threading.Thread(target=self._invoke, name=f"run of {self.name}", daemon=True)
        run.start()
        self._runs = [*(each for each in self._runs if each.is_alive()), run]

    def _invoke(self) -> None:
        try:
            outcome = self._function.invoke(self.event)
        except Exception as exc:  # noqa: BLE001 -- an invoker that breaks its contract must not stop the schedule
            outcome = Invocation(status="function_error", payload=repr(exc).encode(), request_id="", duration_ms=0.0)
        line = {
            "timestamp": time.time_ns() // 1_000_000,
            "function": self.name,
            "requestId": outcome.request_id,
            "status": outcome.status,
            "durationMs": round(outcome.duration_ms),
            "payload": outcome.payload[:PAYLOAD_KEPT].decode(errors="replace"),
        }
        with self._writing:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            with self.log.open("a", encoding="utf-8") as log:
                log.write(json.dumps(line, ensure_ascii=False) + "\n")
