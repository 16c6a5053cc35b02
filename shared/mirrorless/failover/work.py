"""What a failover works with, and the work under way.

The ports are both clusters, the stores of the target's region, the reconcile job, and time. The work is the document
under its lease, waits that keep the lease, and the flow's lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final, Literal, Protocol

import msgspec

from mirrorless.chain.lane import FlowName, Lane
from mirrorless.clock import Deadline
from mirrorless.errors import LeaseLost, Retriable
from mirrorless.failover.state import DOCUMENT, DRILL, FailoverDocument
from mirrorless.flow.settings import FlowSettings
from mirrorless.groups.round import CheckpointRound
from mirrorless.lanes.gaps import LogLooks
from mirrorless.ports.kafka import Groups, LogEnds, Target, TopicPartition
from mirrorless.ports.stores import Chains, FlowStops, LaneStates, StateStore
from mirrorless.records.record import Record
from mirrorless.records.record_batch import RecordBatch
from mirrorless.scheduled.runner import HeldLease, LeasedDocuments
from mirrorless.topics.acl_sync import AclSync
from mirrorless.topics.acls import Acl, Acls


class RecordRanges(Protocol):
    """Reads of short ranges of many partitions of a cluster at once."""

    def ranges(
        self, wanted: Mapping[TopicPartition, tuple[int, int]], deadline: Deadline
    ) -> Iterator[tuple[TopicPartition, list[Record]]]:
        """The visible records of each half-open range of offsets, partition by partition as they are complete.

        Of a batch that cannot be read, and of what follows it, nothing is returned.

        Raises:
            Retriable: the cluster does not answer, or did not show all in time.
        """
        ...

    def batches(
        self, wanted: Mapping[TopicPartition, tuple[int, int]], deadline: Deadline
    ) -> Iterator[tuple[TopicPartition, list[RecordBatch]]]:
        """The same by whole batches."""
        ...


class ShadowGroups(Groups, Protocol):
    """Consumer groups of the drill's own, on the target."""

    def delete(self, groups: Iterable[str], deadline: Deadline) -> None:
        """Delete groups without members; one that is not there is no error.

        Raises:
            Retriable: the cluster does not answer, or refuses.
        """
        ...


class FlowRounds(Protocol):
    """Makes checkpoint rounds as those of the scheduled function, which commit for groups without members at once."""

    def __call__(self, checkpoints: StateStore, /, *, back: bool) -> CheckpointRound:
        """Rounds that keep checkpoints under a lease. Args: back: whether they commit on the source as well."""
        ...


class ReconcileRun(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a reconcile job's run."""

    state: Literal["missing", "running", "succeeded", "failed"]
    phase: str = ""
    place: str = ""
    """URI or path of its folder."""
    error: str = ""
    report: dict[str, Any] = {}
    """Of one that succeeded: `clean`, `totals`, `lanes`, `groups`, `troubles`."""


class ReconcileJobs(Protocol):
    """The reconcile job of one flow, on some platform."""

    def new_id(self) -> str:
        """An id for a new run."""
        ...

    def start(self, run_id: str, *, topics: Sequence[str], groups_exclude: Sequence[str]) -> None:
        """Start a run, and return at once."""
        ...

    def inspect(self, run_id: str) -> ReconcileRun:
        """The state of a run."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverSide:
    """One cluster of the flow."""

    answers: Callable[[], str]
    """Why it does not answer; empty where it does."""
    partitions: Callable[[Deadline], Mapping[str, int]]
    """Every topic with its number of partitions."""
    ends: Callable[[Iterable[TopicPartition], Deadline], Mapping[TopicPartition, LogEnds]]
    acls: Acls
    groups: Groups
    static_groups: Callable[[Iterable[str], Deadline], Collection[str]]
    """Those of some groups whose members are all static (`group.instance.id`)."""
    records: RecordRanges
    looks: LogLooks


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverEffects:
    """Everything that a failover of one flow reads and changes."""

    settings: FlowSettings
    source: FailoverSide
    target: FailoverSide
    replication: Target
    """By which runs in doubt are settled."""
    shadows: ShadowGroups
    chains: Chains
    states: LaneStates
    flow_stops: FlowStops
    documents: StateStore
    """The control table."""
    checkpoints: StateStore
    rounds: FlowRounds
    counterpart: Chains | None
    """Of the flow in the other direction, where both keep the names of topics."""
    acl_sync: AclSync
    acls_of_others: Callable[[], frozenset[Acl]]
    """What failovers of other flows to the same target need."""
    jobs: ReconcileJobs
    clock: Callable[[], int]
    """ms since the epoch."""
    sleep: Callable[[float], None]
    new_id: Callable[[], str]
    """Never the same twice, anywhere."""

    @property
    def both_ways(self) -> bool:
        """Whether the clusters replicate to each other under the same names."""
        return self.counterpart is not None

    @property
    def flow(self) -> FlowName:
        """The flow's name."""
        return self.settings.name

    def within(self, seconds: float) -> Deadline:
        """A deadline from now on."""
        end = self.clock() + int(seconds * 1000)
        return lambda: (end - self.clock()) / 1000

    def remote_topic(self, topic: str) -> str:
        """The name on the target of a topic of the source."""
        return self.settings.policy.remote_topic(self.flow.source, topic)


LEASE: Final = "lease/failover"
LEASE_MS: Final = 30_000
"""Another command waits for so long after one that was killed."""

RENEW_AFTER_MS: Final = 5_000

POLL_SECONDS: Final = 1.0
"""Between two looks at what a step waits for."""

CALL_SECONDS: Final = 20.0
"""For one request to a cluster."""

SAID_EVERY_MS: Final = 5_000
"""Between two lines about the same wait."""


class Unfinished(Retriable):
    """A step waits for something that has not come. Everything before it is done, and is kept."""


class Interrupted(Retriable):
    """The operator has ended the command, between two steps or in a pause. Every result before is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What a step returns."""

    said: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    commands: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class FailoverWork:
    """One command's work on one flow."""

    effects: FailoverEffects
    document: FailoverDocument
    say: Callable[[str], None] = lambda _: None
    """Shows progress."""
    still_seconds: float | None = None
    """For how long ends must stand still, where it is not as usual."""
    cancelled: Callable[[], bool] = lambda: False
    """Whether the operator has ended the command."""
    _lease: HeldLease = field(default_factory=HeldLease)
    _holder: str = ""
    _said: tuple[str, int] = ("", 0)

    @property
    def flow(self) -> FlowName:
        """The flow's name."""
        return self.effects.flow

    @contextmanager
    def leased(self) -> Iterator[None]:
        """Hold the lease inside the block: one command at a time writes the document.

        Raises:
            LeaseLost: another command has it, and renews it.
            Interrupted: see there.
        """
        self._holder = f"failover/{self.effects.new_id()}"
        until = self.effects.clock() + 2 * LEASE_MS
        while not self._claim():
            if self.effects.clock() > until:
                raise LeaseLost("another command is at work on this flow", where=str(self.flow), hint="let it end")
            self.wait_for("another command to end, or its lease")
            self._sleep(POLL_SECONDS)
        try:
            yield
        finally:
            self.effects.documents.release(self.flow, LEASE, holder=self._holder)

    def save(self, document: FailoverDocument) -> None:
        """Store the document.

        Raises:
            LeaseLost: another command has taken over.
            Retriable: the store does not answer.
        """
        self.keep()
        key = DRILL if document.order.mode == "drill" else DOCUMENT
        under = LeasedDocuments(self.effects.documents, self._lease, self.effects.clock)
        under.write(self.flow, {key: msgspec.json.encode(document)})
        self.document = document

    def keep(self) -> None:
        """Renew the lease.

        Raises:
            LeaseLost: another command has it.
        """
        if self.effects.clock() >= self._lease.until - LEASE_MS + RENEW_AFTER_MS and not self._claim():
            raise LeaseLost("another command has taken over", where=str(self.flow), hint="let it end")

    def pause(self, seconds: float = POLL_SECONDS) -> None:
        """Wait between two looks."""
        self.keep()
        self._sleep(seconds)

    def tries(self, seconds: float = inf, *, pause: float = POLL_SECONDS) -> Iterator[bool]:
        """Try again and again, with a pause between two. Each says whether so many seconds are over."""
        began = self.effects.clock()
        while True:
            yield self.effects.clock() > began + seconds * 1000
            self.pause(pause)

    def _sleep(self, seconds: float) -> None:
        self.effects.sleep(seconds)
        self.end_if_cancelled()

    def end_if_cancelled(self) -> None:
        """Go on only if the operator has not ended the command.

        Raises:
            Interrupted: he has.
        """
        if self.cancelled():
            raise Interrupted("cancelled", where=str(self.flow), hint="run the same command again: it goes on")

    def wait_for(self, what: str) -> None:
        """Show what is waited for, once every few seconds."""
        now = self.effects.clock()
        text, at = self._said
        if (what != text and now >= at) or now >= at + SAID_EVERY_MS:
            self.say(f"waiting for {what}")
            self._said = (what, now)

    def check_acls(self, alias: str, failed: Mapping[Acl, str]) -> None:
        """Go on only if a cluster refused no change of its ACLs.

        Raises:
            Unfinished: it did.
        """
        if failed:
            acl, why = min(failed.items())
            role = "source" if alias == self.flow.source else "target"
            raise Unfinished(
                f"{alias} refused {len(failed)} changes of ACLs, the first: {acl}: {why}",
                where=str(self.flow),
                hint=f"the operator needs ALTER on the {role} cluster; then run the same command again",
            )

    def within(self, seconds: float = CALL_SECONDS) -> Deadline:
        """A deadline from now on."""
        return self.effects.within(seconds)

    def _claim(self) -> bool:
        now = self.effects.clock()
        epoch = self.effects.documents.claim(self.flow, LEASE, holder=self._holder, now=now, until=now + LEASE_MS)
        if epoch is None:
            return False
        self._lease.epoch, self._lease.until = epoch, now + LEASE_MS
        return True

    # What the flow has, as the first step found it

    @property
    def topics(self) -> dict[str, int]:
        """The source topics, with their partitions."""
        return dict(self.document.facts("check").get("topics", {}))

    def lanes(self, *, but_stopped: bool = False) -> dict[Lane, TopicPartition]:
        """The lanes, each with its partition on the source. Args: but_stopped: without those that were stopped."""
        stopped = set(self.document.facts("check").get("stopped", ())) if but_stopped else set()
        return {
            lane: (topic, partition)
            for topic, count in self.topics.items()
            for partition in range(count)
            if str(lane := Lane(self.flow, topic, partition)) not in stopped
        }
