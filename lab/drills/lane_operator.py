"""The operator of a soak run: what docs/how-to/on-call.md says about a `broken` lane, by the commands that it names.

    1. Let the refresh of topics come by, which stops every lane of a remote topic with another id.
    2. Disable the mapping: Kafka does not reset the offsets of a group with members.
    3. For each stopped lane: read the plan of `mirrorless lanes reset`, set the group's offset to the same place,
       and execute the plan.
    4. Enable the mapping.

A topic that `pull` reads has no mapping: there the plan is read and executed, and nothing else.

Where the source has lost its end, the lane check comes by too, and the commands that `mirrorless lanes stopped` prints
are executed as they are: of two, the second one once the lane stands where it is to stand still.
Any other stop is a finding, and ends the run. A step that a killed server interrupts is repeated with all before it.
"""

from __future__ import annotations

import json
import re
import shlex
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any, TypeVar

import cli.main
from lab.audit.log_changes import LogChanges, ResetPoint
from lab.audit.topic_reader import ends
from lab.cloud import FlowMapping, Lab
from lab.esm.mapping_api import ResourceInUseError
from lab.faults.schedule import DESTRUCTIVE, OF_SOURCE, PlannedFault
from lab.faults.topic_changes import INTERRUPTIONS, ChangedTopic, insist
from lab.state import describe
from lab.waiting import RepeatedLook, wait_for
from mirrorless.adapters.dynamodb.chains import DynamoDbChains
from mirrorless.adapters.dynamodb.lane_states import DynamoDbLaneStates
from mirrorless.adapters.kafka.groups import KafkaGroups
from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import Stop
from mirrorless.config.flow import Flow
from mirrorless.errors import MirrorlessError, Retriable
from mirrorless.flow.settings import ClusterSettings
from mirrorless.ports.kafka import GroupIsActive, OffsetAndMetadata

T = TypeVar("T")

LOOK_EVERY_SECONDS = 0.2
ANSWER_SECONDS = 10.0
NAMED_WITHIN_SECONDS = 60.0
"""For which a lane of a source that has lost its end may be stopped without the place; it is said to take two minutes,
of which the lane check is the first."""
STOPPED_WITHIN_SECONDS = 90.0
"""For which a lane may go on whose source has lost its end: what holds up the checks ends by then."""
SETTLED_WITHIN_SECONDS = 120.0
"""Longer than a DynamoDB that fails, and after it the lease of a refresh whose last answer was lost."""

_PRINTING = threading.Lock()
"""Of all operators: where a command prints to is a matter of the whole process."""

DOCUMENTED_REASONS: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(OF_SOURCE, frozenset(("truncated",))),
    **dict.fromkeys(DESTRUCTIVE - {*OF_SOURCE}, frozenset(("broken", "remote_recreated"))),
}
"""Of the stops after a topic has lost records, by the fault; other faults cause none."""


class UndocumentedStop(MirrorlessError):
    """A lane stopped for another reason than the documented one."""


class UnnoticedLoss(MirrorlessError):
    """Lanes whose source has lost records that were copied do not stop."""


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
    _attended: int = 0
    """Of `stops`, those that were answered for."""
    _unnamed: dict[int, float] = field(default_factory=dict)
    """Since when a lane is stopped without the place at which its source has lost its end."""
    _busy: threading.Lock = field(default_factory=threading.Lock)
    _watch: RepeatedLook = field(init=False)

    def __post_init__(self) -> None:
        """Make its thread."""
        self._watch = RepeatedLook(self._look_after, every=LOOK_EVERY_SECONDS, name="operator")

    def start(self) -> None:
        """Begin to look after the lanes."""
        self._watch.start()

    def finish(self) -> None:
        """Look no more.

        Raises:
            UndocumentedStop: a lane stopped for another reason.
            MirrorlessError: a step could not be carried out in time.
        """
        self._watch.finish()

    @property
    def changes(self) -> LogChanges:
        """For the audit."""
        return LogChanges(removed=self.remote_topic.removed, resets=self.resets)

    @property
    def of_source(self) -> bool:
        """Whether the source has lost records, not the remote topic."""
        return self.fault.kind in OF_SOURCE

    def refresh(self) -> None:
        """Let the refresh of topics come by."""
        self._insist(lambda: self.lab.refresh_topics(self.flow, [self.topic]))

    def look(self) -> None:
        """Let the refresh of topics and the lane check come by."""
        self.refresh()
        self._insist(self._check_lanes)

    def attend(self) -> bool:
        """Let the checks come by, and reset the lanes that are stopped; whether any were, since this was last asked.

        A lane that stands beyond its source's end counts as replicated until it is reset, by the watch perhaps.
        """
        stopped = self._attend()
        attended, self._attended = self._attended, len(self.stops)
        return stopped or attended < len(self.stops)

    def _attend(self) -> bool:
        with self._busy:
            self.refresh()
            return self._insist(self._check_and_reset)

    def _check_lanes(self) -> None:
        self.lab.check_lanes(self.flow, [self.topic])

    def _check_and_reset(self) -> bool:
        if self.of_source:
            self._check_lanes()  # it settles runs in doubt, too, of which no lane is reset
        return self._reset_stopped()

    def await_stopped(self, lanes: Iterable[int]) -> None:
        """Wait until each of these lanes was stopped.

        Raises:
            UnnoticedLoss: one was not.
        """
        left = set(lanes)

        def going() -> bool:
            left.difference_update(self.resets, self._stopped())
            if left and self._watch.error is None:
                self.attend()
            return bool(left) and self._watch.error is None

        if wait_for(going, seconds=STOPPED_WITHIN_SECONDS):
            raise UnnoticedLoss(f"partitions {sorted(left)} go on", where=f"{self.flow.name} {self.topic}")

    def _insist(self, step: Callable[[], T]) -> T:
        return insist(
            step, interruptions=(*INTERRUPTIONS, ResourceInUseError, GroupIsActive), seconds=SETTLED_WITHIN_SECONDS
        )

    def _look_after(self) -> None:
        if self._stopped():
            self._attend()

    def _reset_stopped(self) -> bool:
        stopped = self._stopped()
        if not stopped:
            return False
        if self.of_source:
            stopped = {partition: stop for partition, stop in stopped.items() if not self._waits(partition, stop)}
        for partition, stop in stopped.items():
            if stop.reason not in DOCUMENTED_REASONS[self.fault.kind]:
                raise UndocumentedStop(
                    f"after {self.fault.kind!r} it stopped as {stop.reason!r}: {stop.detail}",
                    where=f"{self.topic}-{partition}",
                )
        if stopped:
            with self.disabled(self.mapping):
                for partition, stop in stopped.items():
                    self._reset(partition, stop)
        return True

    def _waits(self, partition: int, stop: Stop) -> bool:
        """Whether a stop is not to be attended to yet."""
        if stop.reason == "contradiction":
            since = self._unnamed.setdefault(partition, time.monotonic())
            return time.monotonic() - since < NAMED_WITHIN_SECONDS
        self._unnamed.pop(partition, None)
        return stop.begins_replicated and self._position(partition) < stop.upstream_offset

    def _position(self, partition: int) -> int:
        lane = Lane(self.flow.name, self.topic, partition)
        chains = DynamoDbChains(self.lab.dynamodb.client(), self.lab.tables.offset_map)
        return chains.heads([lane])[lane].position

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
    def disabled(self, mapping: FlowMapping | None) -> Iterator[None]:
        """The mapping, disabled meanwhile, where there is one."""
        if mapping is None:
            yield
            return
        self._switch(mapping, enabled=False)
        try:
            yield
        finally:
            self._switch(mapping, enabled=True)

    def _switch(self, mapping: FlowMapping, *, enabled: bool) -> None:
        self.lab.mappings.update(mapping.uuid, Enabled=enabled)
        wanted = "Enabled" if enabled else "Disabled"
        if wait_for(lambda: self.lab.mappings.get(mapping.uuid)["State"] != wanted, seconds=SETTLED_WITHIN_SECONDS):
            raise Retriable(f"the mapping does not become {wanted}", where=mapping.uuid)

    def _reset(self, partition: int, stop: Stop) -> None:
        words = self._advised(partition, stop) if self.of_source else self._chosen(partition, stop)
        if not words:
            return  # it is stopped for another reason since it was looked at, which the next look attends to
        to = int(words[words.index("--to") + 1])
        if self.mapping is not None:
            self._set_offset(self.mapping, partition, to)
        downstream = ends(self.remote_topic.bootstrap, self.remote_topic.topic).get(partition, 0)
        self._run(*words)
        before = self.resets.get(partition) if self.of_source else None
        self.resets[partition] = ResetPoint(
            upstream=to,
            downstream=downstream,
            kept=self.of_source or self.fault.kind == "truncate remote topic",
            earlier=() if before is None else (*before.earlier, before.downstream),
        )
        self.stops.append(stop)

    def _chosen(self, partition: int, stop: Stop) -> list[str]:
        """The command that an operator chooses by the plan that the earliest reset shows."""
        words = ["lanes", "reset", str(self.flow.name), self.topic, str(partition), "--reason", self.fault.kind, "--to"]
        plan = self._run(*words, "earliest")
        # From the first record, or from a later one: what an operator can do without, or restores otherwise.
        to = round(plan["position"] * max(0.0, 2 * self.fault.part - 1))
        if self.fault.kind == "truncate remote topic":
            to = stop.upstream_offset  # the run in doubt, whose witness was removed
        return [*words, str(to), "--execute"]

    def _advised(self, partition: int, stop: Stop) -> list[str]:
        """The first command that is printed for a lane, as it is; none where its stop is another one by now."""
        answer = self._run("lanes", "stopped", str(self.flow.name), codes=(0, 1))
        if "stopped" not in answer:
            raise Retriable(f"mirrorless lanes stopped: {answer}", where=self.topic)  # a store is down just now
        shown = [each for each in answer["stopped"] if (each["topic"], each["partition"]) == (self.topic, partition)]
        if not shown or shown[0]["reason"] != stop.reason:
            return []
        advice = shown[0]["what_to_do"]
        commands = [shlex.split(each)[1:] for each in re.findall(r"`(mirrorless lanes reset [^`]*)`", advice)]
        if not commands:
            raise UndocumentedStop(f"its advice has no command: {advice}", where=f"{self.topic}-{partition}")
        return commands[0]

    def _set_offset(self, mapping: FlowMapping, partition: int, to: int) -> None:
        name = self.flow.name
        source = ClusterSettings(alias=name.source, bootstrap=self.lab.clusters[name.source].direct)
        until = time.monotonic() + ANSWER_SECONDS
        KafkaGroups(source, flow=str(name)).commit(
            mapping.group_id, {(self.topic, partition): OffsetAndMetadata(to)}, lambda: until - time.monotonic()
        )

    def _run(self, *words: str, codes: Collection[int] = (0,)) -> dict[str, Any]:
        """A command's answer.

        Raises:
            Retriable: it could not be carried out now.
        """
        code, said = answer_of(self.lab, self.folder / f"state-{self.topic}.json", *words, "--json")
        answer = json.loads(said)
        if code not in codes:
            raise Retriable(f"mirrorless {' '.join(words)}: {answer}", where=self.topic)
        return dict(answer)


def answer_of(lab: Lab, state: Path, *words: str) -> tuple[int, str]:
    """A command's exit code, and what it prints. Args: state: the lab's state file, which is written before."""
    state.write_text(json.dumps(describe(lab, ready=True)))
    said = StringIO()
    with _PRINTING, redirect_stdout(said):
        code = cli.main.main([*words, "--lab", str(state)])
    return code, said.getvalue()
