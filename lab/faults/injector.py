"""The injector of planned faults into a running flow; all of them are undone at the end.

Faults of clusters with several brokers: leaders that move, replicas that are missing.

Links and a DynamoDB that work worse for some seconds: distance, width, cuts, throttling, errors, lost answers.

Faults of the runs of `pull`: runs that outlive the lease of their shard, lose it, or are started twice.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from confluent_kafka import ElectionType, KafkaError, KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
)

from lab.cloud import FlowMapping, Lab
from lab.faults.schedule import DEGRADING, DrawnTrigger, FaultKind, PlannedFault
from lab.faults.topic_changes import ANSWER_SECONDS, insist
from lab.functions.fault_orders import FaultAction, FaultOrders
from lab.servers.dynamodb import Misbehaviour, MisbehaviourKind
from lab.servers.kafka import REPLICAS, KafkaBroker, KafkaCluster
from lab.servers.proxy import NetworkLink
from lab.supervisor import Supervisor
from lab.waiting import wait_for
from mirrorless.chain.lane import FlowName
from mirrorless.config.flow import Flow
from mirrorless.flow.naming import FORWARD, PULL, pull_schedule

GONE = {KafkaError.UNKNOWN_TOPIC_OR_PART}
"""A topic that another fault has deleted has no configs to restore."""
NOT_NEEDED = {KafkaError.ELECTION_NOT_NEEDED, KafkaError.UNKNOWN_TOPIC_OR_PART}
"""The leader is the preferred one; or the topic was deleted meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFaults:
    """The faults of one cluster; its dead brokers are restarted by the supervisor."""

    cluster: KafkaCluster
    supervisor: Supervisor

    def broker(self, part: float) -> KafkaBroker:
        """The broker that stands at this part, 0 to 1, of the list."""
        brokers = self.cluster.brokers
        return brokers[min(int(part * len(brokers)), len(brokers) - 1)]

    def kill_two(self, part: float, seconds: float) -> None:
        """Kill all but one for a while: neither the replicas nor the controllers have their majority."""
        staying = self.broker(part)
        killed = [each for each in self.cluster.brokers if each is not staying]
        self.supervisor.hold(*killed)
        for broker in killed:
            broker.kill()
        threading.Event().wait(seconds)  # the outage itself is the fault
        self.supervisor.release(*killed)

    def move_leaders(self, part: float) -> None:
        """Shut one broker down in order, which moves its leaders; when it is back, they move back to it."""
        broker = self.broker(part)
        broker.stop()
        self.supervisor.await_alive(broker)
        insist(self._elect_preferred)  # until all replicas are in sync, which takes longer than a start

    def demand_all_replicas(self, topic: str, part: float, seconds: float) -> None:
        """Let a topic demand all of its replicas in sync, and kill one of their brokers for a while."""
        insist(lambda: self._set_least(topic, REPLICAS))
        killed = self.broker(part)
        self.supervisor.hold(killed)
        killed.kill()
        threading.Event().wait(seconds)  # the outage itself is the fault
        self.supervisor.release(killed)
        insist(lambda: self._set_least(topic, REPLICAS - 1))

    def _elect_preferred(self) -> None:
        admin = self._admin()
        # Of every partition. confluent-kafka 2.16 fails with each of this call's options.
        answers = admin.elect_leaders(ElectionType.PREFERRED, None)
        for error in answers.result(ANSWER_SECONDS).values():
            if error is not None and error.code() not in NOT_NEEDED:
                raise KafkaException(error)  # a replica that is not in sync yet, above all

    def _set_least(self, topic: str, replicas: int) -> None:
        entry = ConfigEntry("min.insync.replicas", str(replicas), incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
        admin = self._admin()
        try:
            admin.incremental_alter_configs([resource])[resource].result(ANSWER_SECONDS)
        except KafkaException as exc:
            if exc.args[0].code() not in GONE:
                raise

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.cluster.direct, "log_level": 0})


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
        alone: AbstractContextManager[object] = nullcontext()
        begin: Callable[[], None]
        undo: Callable[[], None]
        if (kind := MISBEHAVIOURS.get(fault.kind)) is not None:
            proxy = self.lab.dynamodb.proxy
            misbehaviour = Misbehaviour(kind=kind, share=0.2 + 0.7 * fault.part, seconds=LATEST_SECONDS * fault.part)
            begin, undo = partial(proxy.begin, misbehaviour), partial(proxy.end, misbehaviour)
        else:
            end = "source" if fault.kind.endswith("source") else "target"
            link = self.lab.clusters[self.flow.source if end == "source" else self.flow.target].link
            begin, undo = _measures(link, fault)
            alone = self._alone[end]
        with alone:
            begin()
            try:
                threading.Event().wait(fault.seconds)  # the time in which it lasts
            finally:
                undo()


def _measures(link: NetworkLink, fault: PlannedFault) -> tuple[Callable[[], None], Callable[[], None]]:
    """What begins a fault of a link, and what ends it."""

    def degrade(bytes_per_second: float | None, round_trip_ms: float) -> None:
        link.bytes_per_second = bytes_per_second
        link.round_trip_ms, link.jitter_ms = round_trip_ms, JITTER * round_trip_ms

    if fault.kind.startswith("cut"):
        return partial(link.cut, silently=fault.part < SILENT_BELOW), link.restore
    narrow = NARROWEST * 10**fault.part if fault.kind.startswith("narrow") else None
    return partial(degrade, narrow, 0.0 if narrow else FARTHEST_MS * fault.part), partial(degrade, None, 0.0)


TAKEN_WITHIN_SECONDS = 25.0
"""For which a stopped run stands still at most: its lease, and the time until the schedule starts another run."""
ONE_TRY = Config(connect_timeout=1, read_timeout=2, retries={"total_max_attempts": 1})
SHARD = 0


@dataclass(slots=True, kw_only=True)
class PullFaults:
    """The faults of the runs of one flow's only shard."""

    lab: Lab
    flow: Flow
    _client: Any = field(init=False)

    def __post_init__(self) -> None:
        """Make the client, which takes a while."""
        self._client = self.lab.dynamodb.client(ONE_TRY)

    def await_taken(self) -> bool:
        """Wait until another run has the shard than now; False where none takes it in time."""
        holders = {self._holder(), None}
        return not wait_for(lambda: self._holder() in holders, seconds=TAKEN_WITHIN_SECONDS, every=0.2)

    def take_lease_away(self) -> bool:
        """Take the lease from its holder, which goes on; False where there is none, or DynamoDB does not answer."""
        if self._holder() is None:
            return False
        try:
            self._client.update_item(
                TableName=self.lab.tables.control, Key=self._key(), UpdateExpression="REMOVE holder"
            )
        except (BotoCoreError, ClientError):
            return False
        return True

    def start_run(self) -> None:
        """Start one more run."""
        self.lab.scheduled.timers[pull_schedule(self.flow.name, SHARD)].start_once()

    def _holder(self) -> str | None:
        try:
            item = self._client.get_item(TableName=self.lab.tables.control, Key=self._key(), ConsistentRead=True)
        except (BotoCoreError, ClientError):
            return None  # DynamoDB is down just now
        holder: str | None = item.get("Item", {}).get("holder", {}).get("S")
        return holder

    def _key(self) -> dict[str, dict[str, str]]:
        return {"flow": {"S": str(self.flow.name)}, "key": {"S": f"pull/{SHARD}/lease"}}


LOOK_EVERY_SECONDS = 0.02

AT_STEP: Mapping[FaultKind, FaultAction] = {
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
    carried_out: list[PlannedFault] = field(default_factory=list)
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
        try:
            if self._carry_out(fault):
                self.carried_out.append(fault)
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

    def _order(self, action: FaultAction, fault: PlannedFault) -> str:
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
        return True

    def _paused(self, action: FaultAction, fault: PlannedFault) -> bool:
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
        part = PULL if self._hits_pull(fault) else FORWARD
        function = self.lab.functions[self.flow.resource_name(part)]
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
