"""The injector of planned faults into a running flow; all of them are undone at the end."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from lab.cloud import FlowMapping, Lab, function_name
from lab.faults.broker_faults import BrokerFaults
from lab.faults.degradations import Degradations
from lab.faults.orders import Action
from lab.faults.schedule import DEGRADING, FaultKind, FaultSpan, PlannedFault
from mirrorless.config.flow import Flow

LOOK_EVERY_SECONDS = 0.02

AT_STEP: Mapping[FaultKind, Action] = {
    "kill at step": "kill",
    "raise at step": "raise",
    "pause at step": "stop",
    "freeze at step": "freeze",
    "clock forward at step": "forward",
    "clock back at step": "back",
}
"""The order of each kind that happens at a step."""


@dataclass(slots=True, kw_only=True)
class Injector:
    """Carries out the faults of one schedule against one flow's mapping."""

    lab: Lab
    flow: Flow
    mapping: FlowMapping
    faults: Sequence[PlannedFault]
    progress: Callable[[], float]
    """Part of the records that has been produced, 0 to 1."""
    change_topic: Callable[[PlannedFault], bool] = field(default=lambda _: False)
    """Carries out a change of the source topic or the remote topic; False where there is nothing to change."""
    carried_out: list[FaultSpan] = field(default_factory=list)
    _began: dict[PlannedFault, float] = field(default_factory=dict)
    _degradations: Degradations = field(init=False)
    _threads: list[threading.Thread] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)
    _errors: list[BaseException] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Find the links."""
        self._degradations = Degradations(lab=self.lab, flow=self.flow.name)

    def start(self) -> None:
        """Begin to watch the progress."""
        for fault in self.faults:
            thread = threading.Thread(target=self._when_due, args=(fault,), name=str(fault), daemon=True)
            thread.start()
            self._threads.append(thread)

    def finish(self) -> None:
        """Everything is produced: let what is under way end, and take back what never came to be.

        Raises:
            the first error of a fault that could not be carried out.
        """
        self._over.set()
        for thread in self._threads:
            thread.join()
        for order in self.lab.faults.pending():
            self.lab.faults.withdraw(order)
        for pid in self.lab.faults.stopped():
            self._resume(pid)
        if self._errors:
            raise self._errors[0]

    def _when_due(self, fault: PlannedFault) -> None:
        while self.progress() < fault.at and not self._over.wait(LOOK_EVERY_SECONDS):
            pass
        self._began[fault] = time.monotonic()
        try:
            if self._carry_out(fault):
                span = FaultSpan(kind=str(fault), began=self._began[fault], ended=time.monotonic())
                self.carried_out.append(span)
        except Exception as exc:  # noqa: BLE001 -- raised by finish(), in the thread that can report it
            self._errors.append(exc)

    def _carry_out(self, fault: PlannedFault) -> bool:  # noqa: C901, PLR0912 -- one line for each kind of fault
        lab, uuid = self.lab, self.mapping.uuid
        if (action := AT_STEP.get(fault.kind)) is not None:
            order = lab.faults.order(action, fault.step)
            return self._paused(order, fault) if action in {"stop", "freeze"} else self._claimed(order, fault)
        match fault.kind:
            case "kill environment":
                return self._kill_environment()
            case "kill target broker":
                self._brokers("target").broker(fault.part).kill()
            case "kill source broker":
                self._brokers("source").broker(fault.part).kill()
            case "two target brokers down" | "two source brokers down":
                self._brokers(fault.kind).kill_two(fault.part, fault.seconds)
            case "target leaders move" | "source leaders move":
                self._brokers(fault.kind).move_leaders(fault.part)
            case "too few target replicas":
                remote_topic = self.flow.remote_topic(self.mapping.topic)
                self._brokers(fault.kind).demand_all_replicas(remote_topic, fault.part, fault.seconds)
            case "kill DynamoDB":
                lab.dynamodb.kill()
            case "DynamoDB outage":
                lab.supervisor.hold(lab.dynamodb)
                lab.dynamodb.kill()
                threading.Event().wait(fault.seconds)
                lab.supervisor.release(lab.dynamodb)
            case "lost acknowledgement":
                lab.mappings.lose_ack(uuid)
            case "duplicate batch":
                lab.mappings.duplicate_batch(uuid)
            case "concurrent duplicate":
                lab.mappings.duplicate_batch(uuid, concurrently=True)
            case "commit failure":
                lab.mappings.commit_failure(uuid)
            case "rebalance":
                return self._rebalance()
            case _ if fault.kind in DEGRADING:
                self._degradations.carry_out(fault)
            case _:
                return self.change_topic(fault)
        return True

    def _brokers(self, named: str) -> BrokerFaults:
        """The faults of the cluster that a kind names."""
        alias = self.flow.name.source if "source" in named else self.flow.name.target
        return BrokerFaults(cluster=self.lab.clusters[alias], supervisor=self.lab.supervisor)

    def _resume(self, pid: int) -> None:
        try:
            self.lab.faults.resume_stopped(pid)
        except FileNotFoundError:
            return  # another fault's thread has resumed it meanwhile

    def _claimed(self, order: str, fault: PlannedFault) -> bool:
        """Whether an environment reached the step before everything was over."""
        while order in self.lab.faults.pending():
            if self._over.wait(LOOK_EVERY_SECONDS) and self.lab.faults.withdraw(order):
                return False
        self._began[fault] = time.monotonic()
        return True

    def _paused(self, order: str, fault: PlannedFault) -> bool:
        before = set(self.lab.faults.stopped())
        if not self._claimed(order, fault):
            return False
        threading.Event().wait(fault.seconds)  # the pause itself is the fault
        for pid in set(self.lab.faults.stopped()) - before:
            self._resume(pid)
        return True

    def _kill_environment(self) -> bool:
        function = self.lab.functions[function_name(self.flow)]
        for environment in function.environments:
            try:
                os.kill(environment.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue  # it died meanwhile; take another
            return True
        return False

    def _rebalance(self) -> bool:
        try:
            self.lab.mappings.rebalance(self.mapping.uuid)
        except TimeoutError:
            return False  # the source broker is down just now: there is no group to join
        return True
