"""One topic of a soak run: its records, its faults, who replicates it, and its audit."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab.audit.arrival import TopicArrival
from lab.audit.audit import audit_topic, totals, wait_until_replicated
from lab.audit.log_changes import UNCHANGED, LogChanges
from lab.audit.stuck_lanes import LaneWatch, longest_by_fault
from lab.cloud import FlowMapping, Lab, addresses
from lab.drills.topic_drill import TopicDrill
from lab.drills.workload import RecordStream
from lab.faults.injector import Injector
from lab.faults.schedule import Schedule
from lab.faults.topic_changes import insist
from mirrorless.adapters.dynamodb.state_store import DynamoDbDocuments
from mirrorless.config.flow import Flow
from mirrorless.errors import Retriable
from mirrorless.flow.triggers import MAPPING, SCHEDULE, Trigger
from mirrorless.topics.scheduled_topics import read_scheduled_topics

LOOK_EVERY_SECONDS = 0.2
CHANGED_WITHIN_SECONDS = 20.0
"""For which a fault waits for a change of the trigger; the run as a whole waits to its end."""


@dataclass(slots=True, kw_only=True)
class SoakTopic:
    """One topic. `open`, `await_reader`, `run`, `audited`, in this order."""

    lab: Lab
    flow: Flow
    schedule: Schedule
    folder: Path
    """Of the lab."""
    configure: Callable[[], None]
    """Gives the flow the triggers of all topics of the run, as they are now."""
    name: str = field(init=False)
    trigger: Trigger = field(init=False)
    """The one that the topic has now."""
    faults: dict[str, int] = field(default_factory=dict)
    """Carried out, by kind and step."""
    stuck_seconds: dict[str, float] = field(default_factory=dict)
    """See `lab.audit.stuck_lanes`."""
    changes: LogChanges = UNCHANGED
    mapping: FlowMapping | None = None
    _stream: RecordStream = field(init=False)
    _changed: int = 0
    _alone: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        """Name it."""
        self.name = f"soak-{self.schedule.seed}-{self.schedule.trigger}-{int(time.time())}"
        self.trigger = SCHEDULE if self.schedule.trigger == "schedule" else MAPPING
        beside = self.lab.beside(self.flow)
        self._stream = RecordStream(addresses(beside.source), self.name, self.schedule)

    @property
    def options(self) -> dict[str, Any]:
        """The mapping's settings of the schedule, in the API's names."""
        schedule = self.schedule
        return {
            "BatchSize": schedule.batch_size,
            "MaximumBatchingWindowInSeconds": schedule.window_seconds,
            "ProvisionedPollerConfig": {"MinimumPollers": schedule.pollers, "MaximumPollers": schedule.pollers},
            "FunctionResponseTypes": ["ReportBatchItemFailures"] if schedule.partial_responses else [],
        }

    def open(self) -> None:
        """Create the source topic."""
        self._stream.create_topic()

    def await_reader(self, deadline: float) -> None:
        """Wait until the topic is read by its trigger; without schedules, map it.

        Raises:
            TimeoutError: it is not.
        """
        lab = self.lab
        if not lab.control:
            self.mapping = lab.map_topic(self.flow, self.name, **self.options)
        self._await(lambda: self._read_by(self.trigger), deadline)
        mappings = [each for each in lab.flow_mappings if each.topic == self.name]
        for mapping in mappings:
            lab.mappings.wait_enabled(mapping.uuid)
            if self.schedule.trigger == "mapping":
                self.mapping = mapping

    def run(self, deadline: float) -> None:
        """Write the records, carry out the faults, and wait until everything is replicated.

        Raises:
            TimeoutError: it is not in time.
            UndocumentedStop: a lane stopped for a reason that no fault of the schedule explains.
        """
        stream, lab = self._stream, self.lab
        drill = TopicDrill(
            lab=lab,
            flow=self.flow,
            topic=self.name,
            mapping=self.mapping,
            stream=stream,
            folder=self.folder,
            change_trigger=self._change_trigger,
        )
        injector = Injector(
            lab=lab,
            flow=self.flow,
            topic=self.name,
            trigger=self.schedule.trigger,
            mapping=self.mapping,
            faults=self.schedule.faults,
            progress=stream.progress,
            change_topic=drill.change,
        )
        watch = LaneWatch(lab, self.flow.name, self.name, lambda: stream.written)
        watch.start()
        injector.start()
        stream.produce()
        arrival = TopicArrival(lab, lab.beside(self.flow), self.name)
        try:
            if self.schedule.trigger != "mapping":
                arrival.wait(deadline)  # a run of `pull` may begin after the last record: faults wait for its steps
            injector.finish()
            self._await_replicated(arrival, deadline)
            while drill.attend():
                self._await_replicated(arrival, deadline)
        finally:
            self.changes = drill.finish()  # its error is the reason of lanes that stand still
        self._await(lambda: self._read_by(self.trigger), deadline)
        stuck = longest_by_fault(watch.finish(), injector.carried_out)
        self.faults = dict(Counter(span.kind for span in injector.carried_out))
        self.stuck_seconds = stuck

    def audited(self, deadline: float) -> dict[str, int]:
        """The audit's totals; a server that was killed last may still be on its way back."""
        beside = self.lab.beside(self.flow)
        return insist(
            lambda: totals(audit_topic(self.lab, beside, self.name, changes=self.changes).rows),
            interruptions=(Retriable,),
            seconds=deadline - time.monotonic(),
        )

    def _await_replicated(self, arrival: TopicArrival, deadline: float) -> None:
        if self.mapping is not None:
            wait_until_replicated(self.lab, [self.mapping], deadline=deadline)
        arrival.wait(deadline)

    def _change_trigger(self) -> None:
        """Give the topic its other trigger; returns once that one reads it, or it changes once more."""
        with self._alone:
            self.trigger = MAPPING if self.trigger == SCHEDULE else SCHEDULE
            trigger = self.trigger
            self._changed += 1
            number = self._changed
            self.configure()
        pause, ends = threading.Event(), time.monotonic() + CHANGED_WITHIN_SECONDS
        while number == self._changed and time.monotonic() < ends and not self._read_by(trigger):
            pause.wait(LOOK_EVERY_SECONDS)

    def _read_by(self, trigger: Trigger) -> bool:
        """Whether the topic is read by this trigger, and by no other."""
        states = [each["State"] for each in self.lab.mappings.list() if each["Topics"] == [self.name]]
        scheduled = self.name in self._scheduled() if self.lab.control else False
        return (states == [] and scheduled) if trigger == SCHEDULE else (states == ["Enabled"] and not scheduled)

    def _scheduled(self) -> Mapping[str, int]:
        documents = DynamoDbDocuments(self.lab.dynamodb.client(), self.lab.tables.control)
        try:
            return read_scheduled_topics(documents, self.flow.name)
        except Retriable:
            return {self.name: 0} if self.trigger == MAPPING else {}  # DynamoDB is down just now: not yet

    def _await(self, claim: Callable[[], bool], deadline: float) -> None:
        pause = threading.Event()
        while not claim():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.flow.name} {self.name} is not read by its {self.trigger}")
            pause.wait(LOOK_EVERY_SECONDS)
