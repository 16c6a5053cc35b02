"""The operator of a soak run: what docs/how-to/on-call.md says about a `broken` lane, by the commands that it names.

    1. Let the refresh of topics come by, which stops every lane of a remote topic with another id.
    2. Disable the mapping: Kafka does not reset the offsets of a group with members.
    3. For each stopped lane: read the plan of `mirrorless lanes reset`, set the group's offset to the same place,
       and execute the plan.
    4. Enable the mapping.

A topic that `pull` reads has no mapping: there the plan is read and executed, and nothing else.
Any other stop is a finding, and ends the run. A step that a killed server interrupts is repeated with all before it.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any, TypeVar

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

import cli.main
from lab.audit.log_changes import LogChanges, ResetPoint
from lab.audit.topic_reader import ends
from lab.cloud import FlowMapping, Lab
from lab.esm.mapping_api import ResourceInUseError
from lab.faults.schedule import PlannedFault
from lab.faults.topic_changes import INTERRUPTIONS, ChangedTopic, insist
from lab.state import describe
from mirrorless.adapters.dynamodb.lane_states import DynamoDbLaneStates
from mirrorless.config.flow import Flow
from mirrorless.errors import MirrorlessError, Retriable
from mirrorless.lane_state import Stop

T = TypeVar("T")

LOOK_EVERY_SECONDS = 0.2
ANSWER_SECONDS = 10.0
SETTLED_WITHIN_SECONDS = 120.0
"""Longer than a DynamoDB that fails, and after it the lease of a refresh whose last answer was lost."""

_PRINTING = threading.Lock()
"""Of all operators: where a command prints to is a matter of the whole process."""

DOCUMENTED_REASON = "broken"
"""Of the stops after a remote topic has lost records; other faults cause none."""


class UndocumentedStop(MirrorlessError):
    """A lane stopped for another reason than the documented one."""


@dataclass(slots=True, kw_only=True)
class LaneOperator:
    """Attends to the lanes of one topic whose remote topic an outsider changes."""

    lab: Lab
    flow: Flow
    topic: str
    mapping: FlowMapping | None
    """None where `pull` reads the topic."""
    fault: PlannedFault
    remote_topic: ChangedTopic
    folder: Path
    """For the lab's state file."""
    resets: dict[int, ResetPoint] = field(default_factory=dict)
    stops: list[Stop] = field(default_factory=list)
    """Every stop that was attended to."""
    _busy: threading.Lock = field(default_factory=threading.Lock)
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _error: BaseException | None = None

    def start(self) -> None:
        """Begin to look after the lanes."""
        self._thread = threading.Thread(target=self._watch, name="operator", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Look no more.

        Raises:
            UndocumentedStop: a lane stopped for another reason.
            MirrorlessError, KafkaException: a step could not be carried out in time.
        """
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error

    @property
    def changes(self) -> LogChanges:
        """For the audit."""
        return LogChanges(removed=self.remote_topic.removed, resets=self.resets)

    def refresh(self) -> None:
        """Let the refresh of topics come by."""
        self._insist(lambda: self.lab.refresh_topics(self.flow, [self.topic]))

    def attend(self) -> bool:
        """Let the refresh come by, and reset the lanes that are stopped; whether there were any."""
        with self._busy:
            self.refresh()
            return self._insist(self._reset_stopped)

    def _insist(self, step: Callable[[], T]) -> T:
        return insist(step, interruptions=(*INTERRUPTIONS, ResourceInUseError), seconds=SETTLED_WITHIN_SECONDS)

    def _watch(self) -> None:
        try:
            while not self._over.wait(LOOK_EVERY_SECONDS):
                if self._stopped():
                    self.attend()
        except Exception as exc:  # noqa: BLE001 -- raised by finish(), in the thread that can report it
            self._error = exc

    def _reset_stopped(self) -> bool:
        stopped = self._stopped()
        if not stopped:
            return False
        for partition, stop in stopped.items():
            if stop.reason != DOCUMENTED_REASON:
                raise UndocumentedStop(
                    f"after {self.fault.kind!r} it stopped as {stop.reason!r}: {stop.detail}",
                    where=f"{self.topic}-{partition}",
                )
        with nullcontext() if self.mapping is None else self._disabled(self.mapping):
            for partition, stop in stopped.items():
                self._reset(partition, stop)
        return True

    def _stopped(self) -> dict[int, Stop]:
        try:
            states = DynamoDbLaneStates(self.lab.dynamodb.client(), self.lab.tables.lanes).stopped(self.flow.name)
        except Retriable:
            return {}  # DynamoDB is down just now; the next look sees the same
        return {
            lane.partition: state.stop
            for lane, state in states.items()
            if lane.topic == self.topic and state.stop is not None
        }

    @contextmanager
    def _disabled(self, mapping: FlowMapping) -> Iterator[None]:
        """The mapping, disabled meanwhile."""
        self._switch(mapping, enabled=False)
        try:
            yield
        finally:
            self._switch(mapping, enabled=True)

    def _switch(self, mapping: FlowMapping, *, enabled: bool) -> None:
        self.lab.mappings.update(mapping.uuid, Enabled=enabled)
        wanted, deadline = "Enabled" if enabled else "Disabled", time.monotonic() + SETTLED_WITHIN_SECONDS
        while self.lab.mappings.get(mapping.uuid)["State"] != wanted:
            if time.monotonic() > deadline:
                raise Retriable(f"the mapping does not become {wanted}", where=mapping.uuid)
            time.sleep(LOOK_EVERY_SECONDS)  # between two looks at a condition with a deadline

    def _reset(self, partition: int, stop: Stop) -> None:
        plan = self._command(partition, "earliest")
        if self.fault.kind == "truncate remote topic":
            to = stop.upstream_offset  # the run in doubt, whose witness was removed
        else:
            # From the first record, or from a later one: what an operator can do without, or restores otherwise.
            to = round(plan["position"] * max(0.0, 2 * self.fault.part - 1))
        if self.mapping is not None:
            self._set_offset(self.mapping, partition, to)
        downstream = ends(self.remote_topic.bootstrap, self.remote_topic.topic).get(partition, 0)
        self._command(partition, str(to), "--execute")
        kept = self.fault.kind == "truncate remote topic"
        self.resets[partition] = ResetPoint(upstream=to, downstream=downstream, kept=kept)
        self.stops.append(stop)

    def _set_offset(self, mapping: FlowMapping, partition: int, to: int) -> None:
        place = TopicPartition(self.topic, partition, to)
        admin = AdminClient({"bootstrap.servers": self.lab.clusters[self.flow.name.source].direct, "log_level": 0})
        (altered,) = admin.alter_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(mapping.group_id, [place])], request_timeout=ANSWER_SECONDS
        ).values()
        for answer in altered.result(ANSWER_SECONDS).topic_partitions:
            if answer.error is not None:
                raise KafkaException(answer.error)

    def _command(self, partition: int, to: str, *more: str) -> dict[str, Any]:
        """`mirrorless lanes reset`, and its answer.

        Raises:
            Retriable: it could not be carried out now.
        """
        state = self.folder / f"state-{self.topic}.json"
        state.write_text(json.dumps(describe(self.lab, ready=True)))
        words = ["lanes", "reset", str(self.flow.name), self.topic, str(partition), "--to", to]
        words += ["--reason", self.fault.kind, "--lab", str(state), "--json", *more]
        said = StringIO()
        with _PRINTING, redirect_stdout(said):
            code = cli.main.main(words)
        answer = json.loads(said.getvalue())
        if code:
            raise Retriable(f"mirrorless {' '.join(words)}: {answer}", where=f"{self.topic}-{partition}")
        return dict(answer)
