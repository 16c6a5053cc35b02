"""The control plane of event source mappings: create, update, delete, list.

The requests and answers are Lambda's own, by the API's names; calls answer at once and work goes on behind, as with
HTTP 202. What only a lab can offer (waiting, watching, breaking) comes after `stop`.
"""

from __future__ import annotations

import datetime as dt
import threading
import time
import uuid as uuids
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from lab.esm.behaviour import LabBehaviour
from lab.esm.event import EventSource
from lab.esm.mapping_api import (
    GROUP_CONFIG,
    FunctionName,
    PollingOptions,
    ResourceConflictError,
    ResourceInUseError,
    ResourceNotFoundError,
    check_access,
    consumer_group,
    settings_of_create,
    settings_of_update,
)
from lab.esm.mapping_log import MappingLog, PendingFaults
from lab.esm.poller import ASSIGNOR, MappingParts, Poller
from lab.waiting import wait_for

if TYPE_CHECKING:
    import collections.abc
    from collections.abc import Callable
    from pathlib import Path

    from lab.esm.mapping_api import Settings
    from lab.esm.mapping_log import Fault
    from lab.esm.poller import Progress
    from lab.functions.invocation import Invoker

_REBALANCE_S = 20.0
_LOOK_EVERY_S = 0.02

_ACCOUNT = "arn:aws:lambda:us-east-1:000000000000"
_ANSWER_S = 5.0
_POLLER_END_S = 10.0
_NOT_SHOWN = ("FunctionName", "Enabled", "Tags", "KMSKeyArn")


@dataclass(slots=True, kw_only=True, eq=False)
class Mapping:
    """One mapping. `begin` and `end` return at once and work behind, as the API does."""

    uuid: str
    settings: Settings
    """Validated."""
    bootstrap: str
    group_id: str
    function: tuple[FunctionName, Invoker]
    """Its name, as the mapping names it, and its invoker."""
    folder: Path
    behaviour: LabBehaviour
    state: str = "Creating"
    """Creating, Enabling, Enabled, Updating, Disabling, Disabled or Deleting."""
    faults: PendingFaults = field(default_factory=PendingFaults)
    log: MappingLog = field(init=False)
    _modified: dt.datetime = field(default_factory=partial(dt.datetime.now, dt.UTC))
    _pollers: list[Poller] = field(default_factory=list)
    _stopping: threading.Event = field(default_factory=threading.Event)
    _work: threading.Thread | None = None
    _observing: Consumer | None = None
    _opening: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        """Begin its log."""
        self.log = MappingLog(self.folder / f"{self.uuid}.jsonl", uuid=self.uuid)

    @property
    def identity(self) -> tuple[str, str]:
        """What must be unique: the event source and the consumer group."""
        return self.bootstrap, self.group_id

    def configuration(self) -> dict[str, Any]:
        """EventSourceMappingConfiguration, as the API answers it."""
        shown = {name: value for name, value in self.settings.items() if name not in _NOT_SHOWN}
        shown[GROUP_CONFIG] = {**shown.get(GROUP_CONFIG, {}), "ConsumerGroupId": self.group_id}
        return {
            "UUID": self.uuid,
            "EventSourceMappingArn": f"{_ACCOUNT}:event-source-mapping:{self.uuid}",
            "FunctionArn": f"{_ACCOUNT}:function:{self.function[0]}",
            "LastModified": self._modified,
            "LastProcessingResult": self.log.last_result,
            "State": self.state,
            "StateTransitionReason": "USER_INITIATED",
            **shown,
        }

    def begin(self, state: str, *, delay_s: float) -> dict[str, Any]:
        """Start polling with the present settings, or start anew; answers with the state that lasts meanwhile."""
        self._turn_to(state)
        self._modified = dt.datetime.now(dt.UTC)
        answer = self.configuration()
        self._behind(lambda: self._restart(delay_s))
        return answer

    def end(self, then: Callable[[], None]) -> dict[str, Any]:
        """Stop for good, then call back; answers with the state that lasts meanwhile."""
        self._turn_to("Deleting")
        answer = self.configuration()

        def work() -> None:
            self._stop_pollers()
            then()
            self._close_clients()

        self._behind(work)
        return answer

    def begin_stop(self) -> None:
        """Ask everything to stop."""
        self._stopping.set()
        for poller in self._pollers:
            poller.begin_stop()

    def close(self) -> None:
        """Stop, and wait until all is stopped."""
        self._stopping.set()
        if self._work is not None:
            self._work.join()
        if self.state != "Deleting":
            self._stop_pollers()
            self._close_clients()

    def progress(self) -> dict[int, Progress]:
        """How far the pollers are, by partition."""
        return {partition: progress for poller in self._pollers for partition, progress in poller.progress().items()}

    def polls_everything(self) -> bool:
        """Whether every partition of the topic is assigned and has a position."""
        partitions = self._partition_count() if self.state == "Enabled" else 0
        return partitions > 0 and self.progress().keys() >= set(range(partitions))

    def lag(self) -> dict[int, int]:
        """Offsets to go, by partition.

        Raises:
            KafkaException: the cluster does not answer.
        """
        seen = self.progress()
        committed = self.committed()
        lags = {}
        for partition in range(self._partition_count()):
            low, high = self._observer.get_watermark_offsets(self._place(partition), timeout=_ANSWER_S)
            progress = seen.get(partition)
            if progress is not None and progress.drained_to is not None and progress.drained_to >= high:
                lags[partition] = 0
            else:
                start = low if progress is None else progress.committed
                lags[partition] = max(0, high - committed.get(partition, start))
        return lags

    def committed(self) -> dict[int, int]:
        """The group's committed offsets, by partition.

        Raises:
            KafkaException: the cluster does not answer.
        """
        places = [self._place(partition) for partition in range(self._partition_count())]
        known = self._observer.committed(places, timeout=_ANSWER_S) if places else []
        return {it.partition: it.offset for it in known if it.offset >= 0}

    def _restart(self, delay_s: float) -> None:
        self._stop_pollers()
        self._stopping.wait(delay_s)
        if self._stopping.is_set():
            return
        if not self.settings["Enabled"]:
            self._turn_to("Disabled")
            return
        wiring = self._wiring()
        # A poller without a partition would be idle; AWS has none either.
        count = max(1, min(wiring.options.pollers, self._partition_count()))
        self._pollers = [Poller(wiring, number=number) for number in range(count)]
        for poller in self._pollers:
            poller.start()
        self._turn_to("Enabled")

    def _wiring(self) -> MappingParts:
        _, invoker = self.function
        options = PollingOptions.of(self.settings, group_id=self.group_id)
        return MappingParts(
            uuid=self.uuid,
            bootstrap=self.bootstrap,
            options=options,
            source=EventSource(topic=options.topic, bootstrap_servers=self.bootstrap),
            function=invoker,
            behaviour=self.behaviour,
            log=self.log,
            faults=self.faults,
        )

    def _stop_pollers(self) -> None:
        for poller in self._pollers:
            poller.begin_stop()
        for poller in self._pollers:
            # A client whose cluster is gone may be slow to close: it is left behind, with a line in the log.
            poller.join(self.behaviour.stop_grace_s + _POLLER_END_S)
            if poller.is_alive():
                self.log.problem("PROBLEM: A poller did not stop in time", poller=poller.name)
        self._pollers = []

    @property
    def _observer(self) -> Consumer:
        """For whoever watches; it never joins the group."""
        with self._opening:
            if self._observing is None:
                names = {"group.id": self.group_id, "client.id": f"{self.uuid}-observer"}
                isolation = {"isolation.level": "read_committed", "enable.metrics.push": False}
                settings = {"bootstrap.servers": self.bootstrap, **names, **isolation}
                self._observing = Consumer(settings, logger=self.log.client_log)
            return self._observing

    def _close_clients(self) -> None:
        if self._observing is not None:
            self._observing.close()
        self.log.close()

    def _behind(self, work: Callable[[], None]) -> None:
        self._work = threading.Thread(target=work, name=f"mapping-{self.uuid}", daemon=True)
        self._work.start()

    def _turn_to(self, state: str) -> None:
        self.state = state
        self.log.note("INFO", "STATE", state=state)

    def _partition_count(self) -> int:
        """How many partitions the topic has; 0 while that is not known."""
        topic = self.settings["Topics"][0]
        try:
            return len(self._observer.list_topics(topic, timeout=_ANSWER_S).topics[topic].partitions)
        except KafkaException as exc:
            self.log.problem(f"PROBLEM: Connection error: {exc.args[0]}")
            return 0

    def _place(self, partition: int) -> TopicPartition:
        return TopicPartition(self.settings["Topics"][0], partition)


class EventSourceMappings:
    """Lambda's event source mappings for Kafka, over real consumer groups.

    Args:
        functions: invokers by function name; the lab has one version of each, whichever alias is named.
        folder: where each mapping's log `<UUID>.jsonl` is written.
        behaviour: what AWS does not document.
    """

    def __init__(
        self,
        *,
        functions: collections.abc.Mapping[str, Invoker],
        folder: Path,
        behaviour: LabBehaviour | None = None,
    ) -> None:
        self._functions = functions
        self._folder = folder
        self._behaviour = behaviour or LabBehaviour()
        self._mappings: dict[str, Mapping] = {}
        self._lock = threading.Lock()

    def create(self, **request: Any) -> dict[str, Any]:
        """CreateEventSourceMapping: the configuration, in state Creating.

        Raises:
            ValidationError: a field breaks the API's model (400).
            InvalidParameterValueError: fields contradict each other or the mapping's kind (400).
            ResourceNotFoundError: no such function or cluster (404).
            ResourceConflictError: the consumer group is mapped to this event source already (409).
        """
        settings = settings_of_create(request)
        uuid = str(uuids.uuid4())
        group_id = consumer_group(settings) or uuid
        bootstrap = ",".join(settings["SelfManagedEventSource"]["Endpoints"]["KAFKA_BOOTSTRAP_SERVERS"])
        check_access(settings)
        function = self._function(settings)
        with self._lock:
            for other in self._mappings.values():
                if other.identity == (bootstrap, group_id):
                    raise ResourceConflictError(
                        f'An event source mapping with event source ("{bootstrap}"), consumerGroupId ("{group_id}") '
                        f"already exists. Please update or delete the existing mapping with UUID {other.uuid}"
                    )
            mapping = Mapping(
                uuid=uuid,
                settings=settings,
                bootstrap=bootstrap,
                group_id=group_id,
                function=function,
                folder=self._folder,
                behaviour=self._behaviour,
            )
            self._mappings[uuid] = mapping
        return mapping.begin("Creating", delay_s=self._behaviour.creation_delay_s)

    def update(self, uuid: str, /, **request: Any) -> dict[str, Any]:
        """UpdateEventSourceMapping: polling stops, and starts again with the new settings from what is committed.

        Raises:
            ResourceInUseError: the mapping is being created, updated or deleted (400).
            ResourceNotFoundError: no such mapping or function (404).
            ValidationError: a field breaks the API's model (400).
            InvalidParameterValueError: a field can be set at creation only, or fields contradict each other (400).
        """
        with self._lock:
            mapping = self._settled(uuid)
            settings = settings_of_update(mapping.settings, {"UUID": uuid, **request})
            check_access(settings)
            mapping.function = self._function(settings)
            before, mapping.settings = mapping.settings["Enabled"], settings
            state = "Updating" if before == settings["Enabled"] else "Disabling" if before else "Enabling"
            return mapping.begin(state, delay_s=self._behaviour.update_delay_s)

    def delete(self, uuid: str) -> dict[str, Any]:
        """DeleteEventSourceMapping: state Deleting until the pollers have left the group, then it is gone.

        Raises:
            ResourceInUseError: the mapping is being created, updated or deleted (400).
            ResourceNotFoundError: no such mapping (404).
        """
        with self._lock:
            mapping = self._settled(uuid)
            return mapping.end(then=lambda: self._remove(uuid))

    def get(self, uuid: str) -> dict[str, Any]:
        """GetEventSourceMapping.

        Raises:
            ResourceNotFoundError: no such mapping (404).
        """
        return self._mapping(uuid).configuration()

    def list(self) -> list[dict[str, Any]]:
        """ListEventSourceMappings, unpaged."""
        with self._lock:
            mappings = [*self._mappings.values()]
        return [mapping.configuration() for mapping in mappings]

    def tags(self, uuid: str) -> dict[str, str]:
        """ListTags, of a mapping.

        Raises:
            ResourceNotFoundError: no such mapping (404).
        """
        return dict(self._mapping(uuid).settings.get("Tags", {}))

    def tag(self, uuid: str, tags: collections.abc.Mapping[str, str]) -> None:
        """TagResource, of a mapping; polling goes on undisturbed.

        Raises:
            ResourceNotFoundError: no such mapping (404).
        """
        with self._lock:
            mapping = self._known(uuid)
            mapping.settings = {**mapping.settings, "Tags": {**mapping.settings.get("Tags", {}), **tags}}

    def untag(self, uuid: str, keys: collections.abc.Iterable[str]) -> None:
        """UntagResource, of a mapping.

        Raises:
            ResourceNotFoundError: no such mapping (404).
        """
        gone = set(keys)
        with self._lock:
            mapping = self._known(uuid)
            left = {key: value for key, value in mapping.settings.get("Tags", {}).items() if key not in gone}
            mapping.settings = {**mapping.settings, "Tags": left}

    def stop(self) -> None:
        """Stop all pollers and wait for them. Consumer groups and committed offsets stay on the clusters."""
        with self._lock:
            mappings = [*self._mappings.values()]
            self._mappings.clear()
        for mapping in mappings:
            mapping.begin_stop()
        for mapping in mappings:
            mapping.close()

    def wait_enabled(self, uuid: str, *, timeout_s: float = 30.0) -> None:
        """Wait until the pollers have every partition of the topic, and know where to begin.

        Raises:
            TimeoutError: with what is missing.
        """
        mapping = self._mapping(uuid)
        if wait_for(lambda: not mapping.polls_everything(), seconds=timeout_s, every=_LOOK_EVERY_S):
            found = f"state {mapping.state}, {mapping.log.last_result}, see {mapping.log.path}"
            raise TimeoutError(f"mapping {uuid} does not poll all partitions after {timeout_s} s: {found}")

    def lag(self, uuid: str) -> dict[int, int]:
        """Offsets between what is committed and the end of each partition; 0 means that nothing is left to do.

        Control markers behind the last record do not count once the poller has read past them.
        """
        return self._mapping(uuid).lag()

    def committed(self, uuid: str) -> dict[int, int]:
        """The group's committed offsets, from the cluster; a partition without one is absent."""
        return self._mapping(uuid).committed()

    def metrics(self, uuid: str) -> dict[str, int]:
        """Counters by AWS's metric names: Polled, Invoked, FailedInvoke, Dropped, Committed, CommitError and so on."""
        return self._mapping(uuid).log.counts()

    def hold(self, uuid: str) -> None:
        """Invoke no new batch until `release`; what is under way goes on."""
        self._mapping(uuid).faults.held.set()

    def release(self, uuid: str) -> None:
        """End `hold`."""
        self._mapping(uuid).faults.held.clear()

    def lose_ack(self, uuid: str) -> None:
        """Let the poller crash between the next success and its commit: a new session redelivers from the commits."""
        self._arm(uuid, "lose_ack")

    def duplicate_batch(self, uuid: str, *, concurrently: bool = False) -> None:
        """Invoke the next batch twice: one after the other, or both at the same time."""
        self._arm(uuid, "duplicate_concurrently" if concurrently else "duplicate")

    def commit_failure(self, uuid: str) -> None:
        """Let the next commit fail; the one after it covers its positions."""
        self._arm(uuid, "commit_failure")

    def rebalance(self, uuid: str) -> None:
        """Let a stranger join the consumer group, and leave it again: invocations under way become zombies.

        Raises:
            TimeoutError: the group gave the stranger no assignment.
        """
        mapping = self._mapping(uuid)
        joined = threading.Event()
        stranger = Consumer(
            {
                "bootstrap.servers": mapping.bootstrap,
                "group.id": mapping.group_id,
                "client.id": "stranger",
                "enable.auto.commit": False,
                "partition.assignment.strategy": ASSIGNOR,
                "session.timeout.ms": int(self._behaviour.session_timeout_s * 1000),
                "heartbeat.interval.ms": 250,
            },
            logger=mapping.log.client_log,
        )

        stranger.subscribe([mapping.settings["Topics"][0]], on_assign=lambda *_: joined.set())
        deadline = time.monotonic() + _REBALANCE_S
        try:
            while not joined.is_set():
                if time.monotonic() > deadline:
                    raise TimeoutError(f"group {mapping.group_id} did not rebalance within {_REBALANCE_S} s")
                stranger.poll(_LOOK_EVERY_S)
        finally:
            stranger.close()

    def _arm(self, uuid: str, fault: Fault) -> None:
        self._mapping(uuid).faults.arm(fault)

    def _mapping(self, uuid: str) -> Mapping:
        with self._lock:
            return self._known(uuid)

    def _known(self, uuid: str) -> Mapping:
        try:
            return self._mappings[uuid]
        except KeyError as exc:
            raise ResourceNotFoundError(f"The resource you requested does not exist: mapping {uuid}") from exc

    def _settled(self, uuid: str) -> Mapping:
        mapping = self._known(uuid)
        if mapping.state not in ("Enabled", "Disabled"):
            raise ResourceInUseError(f"Cannot change the event source mapping {uuid} because it is {mapping.state}")
        return mapping

    def _remove(self, uuid: str) -> None:
        with self._lock:
            self._mappings.pop(uuid, None)

    def _function(self, settings: Settings) -> tuple[FunctionName, Invoker]:
        named = FunctionName.of(settings["FunctionName"])
        if named.name not in self._functions:
            raise ResourceNotFoundError(f"Function not found: {settings['FunctionName']}")
        return named, self._functions[named.name]
