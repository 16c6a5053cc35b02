"""The verification task of one lane, and the logs that it reads."""

from __future__ import annotations

from typing import Protocol

import msgspec

from mirrorless.chain.lane import FlowName, Lane
from mirrorless.chain.run import Run
from mirrorless.clock import Deadline
from mirrorless.flow.settings import FlowSettings
from mirrorless.jobs.copy_task import LaneLog
from mirrorless.jobs.request import Bound
from mirrorless.verify.run_ranges import chosen
from mirrorless.verify.walk import SeenAs


class VerifyTask(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The part of a job that is one lane, as it is sent to a task."""

    settings: FlowSettings
    topic: str
    partition: int
    run_id: str
    start: Bound = Bound("earliest")
    end: Bound = Bound("latest")
    against_source: bool = False
    target_compacts: bool = False
    source_compacts: bool = False
    source_silent: str = ""
    """Why the source did not answer the job: then no lane waits for it again. Empty where it answered."""
    files: str = ""
    """URI or path of the run's folder, for the progress; empty for none."""

    @property
    def lane(self) -> Lane:
        """The lane of the chain."""
        return Lane(FlowName.parse(self.settings.flow), self.topic, self.partition)

    def wants(self, run: Run, newest: int) -> bool:
        """Whether a run is to be verified."""
        return chosen(run, self.start, self.end, newest=newest)


def but_its_own(settings: FlowSettings, topic: str) -> SeenAs | None:
    """The target's records without those that were produced there; None where flows mark nothing."""
    rule = settings.origin_rule(topic)
    return None if rule is None else lambda _, records: [record for record in records if rule.is_copy(record)]


class Note(Protocol):
    """Reports the progress of a lane."""

    def __call__(self, phase: str, *, done: int, total: int, records: int, bytes: int) -> None:  # noqa: A002 -- as in LaneProgress
        """Report offsets read, of all; records proved; bytes read."""
        ...


class TargetLog(LaneLog, Protocol):
    """A partition's log with the end that readers do not see."""

    def end(self, topic: str, partition: int, deadline: Deadline) -> int:
        """The offset that the next record will have; transactions may hide what lies before it.

        Raises:
            Retriable: the cluster does not answer.
        """
        ...
