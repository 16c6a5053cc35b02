"""Consumer groups that return to the source: their offsets there, exact to the record, by the joined map.

A group that moved to the target has committed there on the remote topic. Three cases, and one rule: its offset on the
source only ever grows. What it had committed there before the outage it has read, whatever came after.

    its offset on the target is in the map           the record's own upstream offset; a gap of orphans is passed
    it has read everything that came back            the lane's position: it reads replayed and later records
    it has read what is not copied back yet          `ahead_of_replication`: run the reconcile again before it returns
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec
from msgspec.structs import replace

from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import Head
from mirrorless.chain.run import Link
from mirrorless.clock import Deadline
from mirrorless.errors import MirrorlessError, Retriable
from mirrorless.flow.filters import NameFilter
from mirrorless.flow.naming import OWN_GROUPS
from mirrorless.groups.checkpoints import GroupOffset, Numbers, Readiness, offsets_to_commit
from mirrorless.groups.ownership import ClaimedOffsets
from mirrorless.groups.readiness import Rereads, assess
from mirrorless.ports.kafka import GroupIsActive, Groups, GroupState, OffsetAndMetadata, TopicPartition
from mirrorless.ports.stores import ChainReads
from mirrorless.protocol.past import PastStore
from mirrorless.protocol.translate import OffsetMap

GROUPS_OF_A_BATCH: Final = 50
"""Whose offsets are read and committed before those of the next ones."""

REMEMBERED: Final = 100_000
"""Answers of the chains, at most."""


class ReturningLane(msgspec.Struct, frozen=True, kw_only=True):
    """The offsets of a group in one partition, on both sides."""

    topic: str
    partition: int
    downstream: int
    """Committed on the target."""
    upstream: int | None
    """The same on the source; None without a map."""
    state: str
    """See `mirrorless.protocol.translate.TranslationState`."""
    had: int | None
    """Committed on the source before."""
    written: bool
    """Whether `upstream` was to be written there."""


class ReturningGroup(msgspec.Struct, frozen=True, kw_only=True):
    """One group on its way back."""

    group: str
    readiness: Readiness
    reread: int
    """Records that it will read again on the source."""
    kept: int
    """Records that it has read on the source before the outage, and stands before on the target: they are not read
    again."""
    lanes: tuple[ReturningLane, ...]

    def due(self) -> dict[tuple[str, int], OffsetAndMetadata]:
        """The offsets to commit on the source."""
        return {
            (lane.topic, lane.partition): OffsetAndMetadata(lane.upstream)
            for lane in self.lanes
            if lane.written and lane.upstream is not None
        }

    def claimed(self) -> ClaimedOffsets:
        """Its offsets on the target that this brings back: from then on the flow may replace them."""
        offsets: Numbers = {}
        reached: Numbers = {}
        for lane in self.lanes:
            if lane.written:
                offsets.setdefault(lane.topic, {})[lane.partition] = lane.downstream
            elif lane.state in {"exact", "next_record"} and (lane.had or 0) >= (lane.upstream or 0):
                reached.setdefault(lane.topic, {})[lane.partition] = lane.downstream
        return ClaimedOffsets(group=self.group, direction="forward", offsets=offsets, reached=reached)


@dataclass(slots=True)
class StandingChains:
    """Chains that nobody continues meanwhile: what was read once is not read again, for groups stand side by side."""

    chains: ChainReads
    _heads: dict[Lane, Head] = field(default_factory=dict)
    _links: dict[tuple[object, ...], list[Link]] = field(default_factory=dict)

    def heads(self, lanes: Iterable[Lane]) -> dict[Lane, Head]:
        """See `ChainReads.heads`."""
        wanted = list(lanes)
        if unknown := [lane for lane in wanted if lane not in self._heads]:
            self._heads |= self.chains.heads(unknown)
        return {lane: self._heads[lane] for lane in wanted}

    def at_or_before(self, lane: Lane, generation: int, upstream: int, *, head: Head | None = None) -> Link | None:
        """See `ChainReads.at_or_before`."""

        def read() -> list[Link]:
            found = self.chains.at_or_before(lane, generation, upstream, head=head)
            return [] if found is None else [found]

        found = self._once((lane, generation, upstream), read)
        return found[0] if found else None

    def after(self, lane: Lane, generation: int, upstream: int, *, limit: int, head: Head | None = None) -> list[Link]:
        """See `ChainReads.after`."""
        return self._once(
            (lane, generation, upstream, limit),
            lambda: self.chains.after(lane, generation, upstream, limit=limit, head=head),
        )

    def _once(self, asked: tuple[object, ...], read: Callable[[], list[Link]]) -> list[Link]:
        if asked not in self._links:
            if len(self._links) >= REMEMBERED:
                self._links.clear()
            self._links[asked] = read()
        return self._links[asked]


def returning(
    group: str,
    chains: ChainReads,
    *,
    on_target: Mapping[Lane, OffsetAndMetadata],
    on_source: Mapping[Lane, OffsetAndMetadata],
    state_on_source: GroupState,
    covered: Mapping[Lane, int],
    past: PastStore | None = None,
) -> ReturningGroup:
    """Find the offsets at which a group continues on the source.

    Args:
        group: its name.
        chains: with the joined chains.
        on_target: what it has committed there, by forward lane.
        on_source: likewise.
        state_on_source: nothing is written under live members.
        covered: the downstream offset up to which each lane was brought back; a group beyond it is ahead.
        past: of the lanes.

    Raises:
        Retriable: the store of chains does not answer.
    """
    offset_map = OffsetMap(chains, past)
    offsets: dict[Lane, GroupOffset] = {}
    for lane, committed in on_target.items():
        found = offset_map.upstream(lane, committed.offset, stable_end=covered.get(lane))
        offsets[lane] = GroupOffset(found.offset, committed.offset, found.state, committed.metadata, found.bound)
    active = state_on_source == "active"
    # There are no earlier rounds of this direction whose offsets could hold the group back.
    due = {} if active else offsets_to_commit("reverse", offsets, None, on_source)
    after = {**on_source, **due}
    reread = 0 if active else Rereads(offset_map=offset_map).count("reverse", group, offsets, after)[0]
    reread += 0 if active else sum(offset.bound for offset in offsets.values())
    kept = sum(
        offset_map.records_between(lane, offset.upstream, on_source[lane].offset, "upstream")
        for lane, offset in offsets.items()
        if lane in on_source and offset.upstream is not None and offset.usable
    )
    return ReturningGroup(
        group=group,
        readiness=assess("reverse", offsets, active_there=active, reread=reread),
        reread=reread,
        kept=kept,
        lanes=tuple(
            ReturningLane(
                topic=lane.topic,
                partition=lane.partition,
                downstream=offset.downstream or 0,
                upstream=offset.upstream,
                state=offset.state,
                had=on_source[lane].offset if lane in on_source else None,
                written=lane in due,
            )
            for lane, offset in sorted(offsets.items())
        ),
    )


@dataclass(slots=True, kw_only=True)
class GroupsBack:
    """The groups of one flow on both sides: those with offsets on the remote topics are brought back."""

    chains: ChainReads
    """Of lanes that are held: nobody continues them meanwhile."""
    source: Groups
    target: Groups
    include: Sequence[str]
    """Names and regular expressions."""
    exclude: Sequence[str]
    claim: Callable[[ClaimedOffsets], None]
    """Stores a claim for the flow's scheduled function."""
    past: PastStore | None = None
    """Of the lanes."""

    def bring(
        self, remote: Mapping[TopicPartition, Lane], covered: Mapping[Lane, int], patience: Callable[[], Deadline]
    ) -> tuple[list[ReturningGroup], list[str]]:
        """Commit for each group without members on the source; the groups, and the errors in words.

        A group that cannot be brought back keeps none of the others from it; the next run has it to do.

        Args:
            remote: the forward lane of each partition of the target that was reconciled.
            covered: see `returning`.
            patience: a deadline for the next requests; for a batch of groups, and each commit, it is made anew.

        Raises:
            Retriable: the target does not list its groups.
        """
        wanted = NameFilter(include=tuple(self.include), exclude=tuple(self.exclude))
        names = [
            name for name in self.target.names(patience()) if not name.startswith(OWN_GROUPS) and wanted.accepts(name)
        ]
        chains = StandingChains(self.chains)
        groups: list[ReturningGroup] = []
        troubles: list[str] = []
        for first in range(0, len(names), GROUPS_OF_A_BATCH):
            some = names[first : first + GROUPS_OF_A_BATCH]
            try:
                groups += self._bring(some, chains, remote, covered, patience=patience, troubles=troubles)
            except Retriable as exc:
                more = f", and {len(some) - 1} groups more" if len(some) > 1 else ""
                troubles.append(f"the offsets of group {some[0]}{more} wait: {exc}")
        return groups, troubles

    def _bring(
        self,
        names: Sequence[str],
        chains: ChainReads,
        remote: Mapping[TopicPartition, Lane],
        covered: Mapping[Lane, int],
        *,
        patience: Callable[[], Deadline],
        troubles: list[str],
    ) -> list[ReturningGroup]:
        on_target = self.target.committed(names, patience())
        there = {
            name: {remote[place]: offset for place, offset in on_target[name].items() if place in remote}
            for name in names
            if name in on_target
        }
        there = {name: places for name, places in there.items() if places}
        troubles += [
            f"the offsets of group {name} on the target could not be read" for name in names if name not in on_target
        ]
        states = self.source.states(there, patience())
        on_source = self.source.committed(there, patience())
        chains.heads({lane for places in there.values() for lane in places})  # all in one go
        groups = []
        for name, places in there.items():
            if name not in on_source:
                troubles.append(f"the offsets of group {name} on the source could not be read")
                continue
            here = {
                lane: on_source[name][at] for lane in places if (at := (lane.topic, lane.partition)) in on_source[name]
            }
            try:
                found = returning(
                    name,
                    chains,
                    on_target=places,
                    on_source=here,
                    state_on_source=states.get(name, "active"),
                    covered=covered,
                    past=self.past,
                )
                groups.append(self._commit(found, troubles, patience()))
            except MirrorlessError as exc:
                troubles.append(f"the offsets of group {name} wait: {exc}")
        return groups

    def _commit(self, group: ReturningGroup, troubles: list[str], deadline: Deadline) -> ReturningGroup:
        """Commit the offsets of one group; the group with its new readiness."""
        claimed = group.claimed()
        if claimed.offsets or claimed.reached:
            self.claim(claimed)  # before the commit: a claim without one is harmless
        try:
            self.source.commit(group.group, group.due(), deadline)
        except GroupIsActive:
            return replace(group, readiness="active_on_source")  # it has got a member meanwhile
        except Retriable as exc:
            troubles.append(f"the offsets of group {group.group} wait: {exc}")
            return replace(group, readiness="behind")
        return group
