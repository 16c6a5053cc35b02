"""The topic faults of one soak run: changes of the source topic and of the remote topic, and the operator's part."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from lab.audit.log_changes import UNCHANGED, LogChanges
from lab.audit.topic_reader import ends
from lab.cloud import FlowMapping, Lab
from lab.drills.lane_operator import LaneOperator
from lab.drills.workload import RecordStream
from lab.faults.schedule import DESTRUCTIVE, PlannedFault
from lab.faults.topic_changes import ChangedTopic, insist
from mirrorless.config.flow import Flow

LOOK_EVERY_SECONDS = 0.1
REPLICATED_WITHIN_SECONDS = 10.0
"""How long a change waits for the remote topic's first record."""


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
            if fault.kind == "add source partition":
                source = ChangedTopic(bootstrap=self.lab.clusters[self.flow.name.source].direct, topic=self.topic)
                self.stream.spread(source.add_partition())
                return True
            if not self._has_records(remote):
                return False
            if fault.kind == "add remote partition":
                remote.add_partition()
            if fault.kind in DESTRUCTIVE:
                self._destroy(remote, fault)
        return True

    def attend(self) -> bool:
        """Everything is replicated: whether lanes were stopped even so, and go on now."""
        return self.operator is not None and self.operator.attend()

    def finish(self) -> LogChanges:
        """End the operator's watch. Raises like `LaneOperator.finish`."""
        if self.operator is None:
            return UNCHANGED
        self.operator.finish()
        return self.operator.changes

    def _destroy(self, remote: ChangedTopic, fault: PlannedFault) -> None:
        # The refresh stores the remote topic's id, as it has done once a minute.
        operator = LaneOperator(
            lab=self.lab,
            flow=self.flow,
            topic=self.topic,
            mapping=self.mapping,
            fault=fault,
            remote_topic=remote,
            folder=self.folder,
        )
        operator.refresh()
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
        deadline = time.monotonic() + REPLICATED_WITHIN_SECONDS
        pause = threading.Event()
        while time.monotonic() < deadline:
            if any(insist(lambda: ends(remote.bootstrap, remote.topic)).values()):
                return True
            pause.wait(LOOK_EVERY_SECONDS)
        return False
