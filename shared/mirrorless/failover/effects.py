"""The ports of a failover: both clusters, the stores of the target's region, the reconcile job, and time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import msgspec

from mirrorless.chain.lane import FlowName
from mirrorless.clock import Deadline
from mirrorless.flow.settings import FlowSettings
from mirrorless.groups.round import CheckpointRound
from mirrorless.lanes.gaps import LogLooks
from mirrorless.ports.kafka import Groups, LogEnds, Target, TopicPartition
from mirrorless.ports.stores import Chains, FlowFences, LaneStates, StateStore
from mirrorless.records.record import Record
from mirrorless.records.record_batch import RecordBatch
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
    fences: FlowFences
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
