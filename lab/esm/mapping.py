"""One event source mapping: its state machine and its pollers."""

from __future__ import annotations

import datetime as dt
import threading
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from lab.esm.event import EventSource
from lab.esm.mapping_api import GROUP_CONFIG, PollingOptions
from lab.esm.mapping_log import MappingLog, PendingFaults
from lab.esm.poller import MappingParts, Poller

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lab.esm.behaviour import LabBehaviour
    from lab.esm.mapping_api import FunctionName, Settings
    from lab.esm.poller import Progress
    from lab.functions.invocation import Invoker

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
    access: Callable[[], dict[str, Any]]
    """Makes the client's settings of authentication, of secrets as they are now."""
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
            access=self.access,
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
                settings = {**self.access(), "bootstrap.servers": self.bootstrap, **names, **isolation}
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
