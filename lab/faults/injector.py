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
from lab.faults.orders import Action, FaultOrders
from lab.faults.pull_faults import PullFaults
from lab.faults.schedule import DEGRADING, DrawnTrigger, FaultKind, FaultSpan, PlannedFault
from lab.functions.control import control_name
from mirrorless.config.flow import Flow
from mirrorless.naming import PULL

LOOK_EVERY_SECONDS = 0.02

AT_STEP: Mapping[FaultKind, Action] = {
    "kill at step": "kill",
    "raise at step": "raise",
    "pause at step": "stop",
    "freeze at step": "freeze",
    "outlive lease at step": "stop",
    "clock forward at step": "forward",
    "clock back at step": "back",
}
"""The order of each kind that happens at a step."""
OF_FORWARDER = 0.5
"""The part of a fault below which it hits the forwarder, where a topic changes between that and `pull`."""


@dataclass(slots=True, kw_only=True)
class Injector:
    """Carries out the faults of one schedule against one topic of a flow."""

    lab: Lab
    flow: Flow
    topic: str
    trigger: DrawnTrigger
    mapping: FlowMapping | None
    """None where no mapping of this topic stays."""
    faults: Sequence[PlannedFault]
    progress: Callable[[], float]
    """Part of the records that has been produced, 0 to 1."""
    change_topic: Callable[[PlannedFault], bool] = field(default=lambda _: False)
    """Carries out a change of the topic, the remote topic or the trigger; False where there is nothing to change."""
    carried_out: list[FaultSpan] = field(default_factory=list)
    _began: dict[PlannedFault, float] = field(default_factory=dict)
    _degradations: Degradations = field(init=False)
    _pull: PullFaults = field(init=False)
    _threads: list[threading.Thread] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)
    _errors: list[BaseException] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Find the links."""
        self._degradations = Degradations(lab=self.lab, flow=self.flow.name)
        self._pull = PullFaults(lab=self.lab, flow=self.flow)

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
        kinds = {"mapping": [self.lab.faults], "schedule": [self.lab.pull_faults]}
        for orders in kinds.get(self.trigger, [self.lab.faults, self.lab.pull_faults]):
            for order in orders.pending():
                orders.withdraw(order)
            for pid in orders.stopped():
                self._resume(orders, pid)
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
        lab, uuid = self.lab, self.mapping.uuid if self.mapping is not None else ""
        if (action := AT_STEP.get(fault.kind)) is not None:
            paused = action in {"stop", "freeze"}
            return self._paused(action, fault) if paused else self._claimed(self._order(action, fault), fault)
        match fault.kind:
            case "kill environment":
                return self._kill_environment(fault)
            case "kill target broker":
                self._brokers("target").broker(fault.part).kill()
            case "kill source broker":
                self._brokers("source").broker(fault.part).kill()
            case "two target brokers down" | "two source brokers down":
                self._brokers(fault.kind).kill_two(fault.part, fault.seconds)
            case "target leaders move" | "source leaders move":
                self._brokers(fault.kind).move_leaders(fault.part)
            case "too few target replicas":
                remote_topic = self.flow.remote_topic(self.topic)
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
                return self._rebalance(uuid)
            case "lost lease":
                return self._pull.take_lease_away()
            case "extra run":
                self._pull.start_run()
            case _ if fault.kind in DEGRADING:
                self._degradations.carry_out(fault)
            case _:
                return self.change_topic(fault)
        return True

    def _brokers(self, named: str) -> BrokerFaults:
        """The faults of the cluster that a kind names."""
        alias = self.flow.name.source if "source" in named else self.flow.name.target
        return BrokerFaults(cluster=self.lab.clusters[alias], supervisor=self.lab.supervisor)

    def _hits_pull(self, fault: PlannedFault) -> bool:
        """Whether a fault of a function is one of `pull`."""
        of_both = fault.part >= OF_FORWARDER or fault.kind == "outlive lease at step"
        return self.trigger == "schedule" or (self.trigger == "change" and of_both)

    def _orders(self, fault: PlannedFault) -> FaultOrders:
        return self.lab.pull_faults if self._hits_pull(fault) else self.lab.faults

    def _order(self, action: Action, fault: PlannedFault) -> str:
        return self._orders(fault).order(action, fault.step)

    def _resume(self, orders: FaultOrders, pid: int) -> None:
        try:
            orders.resume_stopped(pid)
        except FileNotFoundError:
            return  # another fault's thread has resumed it meanwhile

    def _claimed(self, order: str, fault: PlannedFault) -> bool:
        """Whether an environment reached the step before everything was over."""
        orders = self._orders(fault)
        while order in orders.pending():
            if self._over.wait(LOOK_EVERY_SECONDS) and orders.withdraw(order):
                return False
        self._began[fault] = time.monotonic()
        return True

    def _paused(self, action: Action, fault: PlannedFault) -> bool:
        orders = self._orders(fault)
        before = set(orders.stopped())
        if not self._claimed(self._order(action, fault), fault):
            return False
        if fault.kind == "outlive lease at step":
            self._pull.await_taken()
        else:
            threading.Event().wait(fault.seconds)  # the pause itself is the fault
        for pid in set(orders.stopped()) - before:
            self._resume(orders, pid)
        return True

    def _kill_environment(self, fault: PlannedFault) -> bool:
        name = control_name(self.flow, PULL) if self._hits_pull(fault) else function_name(self.flow)
        function = self.lab.functions[name]
        for environment in function.environments:
            try:
                os.kill(environment.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue  # it died meanwhile; take another
            return True
        return False

    def _rebalance(self, uuid: str) -> bool:
        try:
            self.lab.mappings.rebalance(uuid)
        except TimeoutError:
            return False  # the source broker is down just now: there is no group to join
        return True
