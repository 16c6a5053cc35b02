"""The topic faults of one soak run: changes of the source topic and of the remote topic, and the operator's part."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from lab.audit.log_changes import UNCHANGED, LogChanges
from lab.audit.topic_reader import ends, stable_ends
from lab.cloud import FlowMapping, Lab
from lab.drills.lane_operator import LaneOperator
from lab.drills.workload import RecordStream
from lab.faults.schedule import DESTRUCTIVE, OF_SOURCE, PlannedFault
from lab.faults.topic_changes import ChangedTopic, cut_ends, insist
from mirrorless.adapters.dynamodb.chains import DynamoDbChains
from mirrorless.chain.lane import Lane
from mirrorless.config.flow import Flow
from mirrorless.verify.comparison import RecordAt

LOOK_EVERY_SECONDS = 0.1
REPLICATED_WITHIN_SECONDS = 10.0
"""How long a change waits for the remote topic's first record."""
COPIED_WITHIN_SECONDS = 60.0
"""The same for a lane's first position, where nothing is written meanwhile; other faults hold it up."""
WRITTEN_AT_ONCE = 100
"""Records between two looks whether a log has outgrown what it lost."""


@dataclass(slots=True, kw_only=True)
class TopicDrill:
    """Carries out the topic faults of one run."""

    lab: Lab
    flow: Flow
    topic: str
    mapping: FlowMapping | None
    """None where no mapping of this topic stays."""
    stream: RecordStream
    folder: Path
    """Of the lab."""
    change_trigger: Callable[[], None] = field(default=lambda: None)
    """Gives the topic its other trigger, and waits until that one reads it, or it changes once more."""
    operator: LaneOperator | None = None
    _foreign: set[bytes] = field(default_factory=set)
    _lost: dict[int, list[RecordAt]] = field(default_factory=dict)
    _kept: dict[int, int] = field(default_factory=dict)
    """Up to which upstream offset what was lost had been copied, by partition."""
    _alone: threading.Lock = field(default_factory=threading.Lock)

    def change(self, fault: PlannedFault) -> bool:
        """Carry out one fault; False where nothing was replicated yet."""
        remote = ChangedTopic(
            bootstrap=self.lab.clusters[self.flow.name.target].direct, topic=self.flow.remote_topic(self.topic)
        )
        if fault.kind == "change trigger":
            self.change_trigger()
            return True
        with self._alone:
            if fault.kind in OF_SOURCE:
                return self._lose_end(remote, fault)
            if fault.kind == "add source partition":
                source = ChangedTopic(bootstrap=self.lab.clusters[self.flow.name.source].direct, topic=self.topic)
                self.stream.spread(source.add_partition())
                return True
            if not self._has_records(remote):
                return False
            if fault.kind == "add remote partition":
                remote.add_partition()
            if fault.kind == "foreign producer":
                remote.foreign = self._foreign
                remote.write_beside(fault.part)
            if fault.kind in DESTRUCTIVE:
                self._destroy(remote, fault)
        return True

    def attend(self) -> bool:
        """Everything is replicated: whether lanes were stopped even so, and go on now."""
        return self.operator is not None and self.operator.attend()

    def finish(self) -> LogChanges:
        """End the operator's watch. Raises like `LaneOperator.finish`."""
        changes = UNCHANGED
        if self.operator is not None:
            self.operator.finish()
            changes = self.operator.changes
        return replace(changes, foreign=frozenset(self._foreign), lost=self._lost, copied=self._kept)

    def _operator(self, remote: ChangedTopic, fault: PlannedFault) -> LaneOperator:
        return LaneOperator(
            lab=self.lab,
            flow=self.flow,
            topic=self.topic,
            mapping=self.mapping,
            fault=fault,
            remote_topic=remote,
            folder=self.folder,
        )

    def _lose_end(self, remote: ChangedTopic, fault: PlannedFault) -> bool:
        """Cut the source's logs behind records that were copied; False where nothing would be written on.

        Raises:
            UnnoticedLoss: lanes do not stop.
        """
        operator, source = self._operator(remote, fault), self.lab.clusters[self.flow.name.source]
        with ExitStack() as held:
            if not held.enter_context(self.stream.held()):
                return False
            before = self._copied()
            if not before:
                return False
            operator.look()  # it stores ids, ends and epochs, as it has done once a minute
            silent = fault.kind == "source outgrows its loss" and self.mapping is not None
            if silent:
                # A poller that reads meanwhile is told by the source that its place is gone.
                held.enter_context(operator.disabled(self.mapping))
            stable = insist(lambda: stable_ends(source.direct, self.topic))
            highest = {
                partition: min(round(before.get(partition, end) * (1 - fault.part)), before.get(partition, end + 1) - 1)
                for partition, end in stable.items()
            }
            cut = cut_ends(source, self.lab.supervisor, self.topic, highest, copied=before)
            self.stream.lose(cut.ends)
            self._lost, self._kept = cut.gone, before
            copied = {
                partition: position
                for partition, position in before.items()
                if any(each.offset < position for each in cut.gone[partition])
            }
            self.operator = operator
            if fault.kind == "source outgrows its loss":
                while any(
                    end <= stable[partition]
                    for partition, end in insist(lambda: ends(source.direct, self.topic)).items()
                ):
                    self.stream.write_on(WRITTEN_AT_ONCE)
            else:
                self.stream.write_on(
                    max(1, min(before[each] - cut.ends[each] for each in copied) // 2) if copied else 1
                )
                operator.start()
                operator.await_stopped(copied)
        if silent:
            self._await(lambda: any(self._copied().get(each, 0) > stable[each] for each in copied))
        if fault.kind == "source outgrows its loss":
            operator.start()
            operator.await_stopped(copied)
        return True

    def _copied(self) -> dict[int, int]:
        """The position of each lane once there is one above 0; none where there is none in time."""
        chains = DynamoDbChains(self.lab.dynamodb.client(), self.lab.tables.offset_map)
        lanes = [Lane(self.flow.name, self.topic, partition) for partition in range(self.stream.partitions)]
        found: dict[int, int] = {}

        def copied() -> bool:
            heads = insist(lambda: chains.heads(lanes))
            found.update({lane.partition: head.position for lane, head in heads.items() if head.position})
            return bool(found)

        self._await(copied, COPIED_WITHIN_SECONDS)
        return found

    def _destroy(self, remote: ChangedTopic, fault: PlannedFault) -> None:
        operator = self._operator(remote, fault)
        operator.refresh()  # it stores the remote topic's id, as it has done once a minute
        match fault.kind:
            case "delete remote topic":
                remote.delete()
            case "re-create remote topic":
                remote.create_again()
            case "truncate remote topic":
                remote.truncate(fault.part)
        self.operator = operator
        operator.start()
        threading.Event().wait(fault.seconds)  # the forwarder has this long to see it, before the refresh comes by
        operator.attend()

    def _has_records(self, remote: ChangedTopic) -> bool:
        return self._await(lambda: any(insist(lambda: ends(remote.bootstrap, remote.topic)).values()))

    def _await(self, claim: Callable[[], bool], seconds: float = REPLICATED_WITHIN_SECONDS) -> bool:
        """Whether something comes to be in time."""
        deadline = time.monotonic() + seconds
        pause = threading.Event()
        while not claim():
            if time.monotonic() > deadline:
                return False
            pause.wait(LOOK_EVERY_SECONDS)
        return True
