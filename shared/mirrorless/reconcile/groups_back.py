"""Which groups are brought back, and who gives them their offsets? Those that have committed on the remote topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from mirrorless.errors import Retriable
from mirrorless.filters import NameFilter
from mirrorless.lane import Lane
from mirrorless.ports.groups import GroupIsActive, Groups
from mirrorless.ports.kafka import Deadline, TopicPartition
from mirrorless.ports.stores import Chains
from mirrorless.reconcile.returning_groups import ReturningGroup, returning
from mirrorless.scheduled.scope import OWN_GROUPS


@dataclass(slots=True, kw_only=True)
class GroupsBack:
    """The groups of one flow, on both sides."""

    chains: Chains
    source: Groups
    target: Groups
    include: Sequence[str]
    """Names and regular expressions."""
    exclude: Sequence[str]

    def bring(
        self, remote: Mapping[TopicPartition, Lane], covered: Mapping[Lane, int], deadline: Deadline
    ) -> tuple[list[ReturningGroup], list[str]]:
        """Commit for each group that sleeps on the source; the groups, and what went wrong.

        Args:
            remote: the forward lane of each partition of the target that was reconciled.
            covered: see `returning`.
            deadline: seconds left.

        Raises:
            Retriable: a cluster or the store does not answer.
        """
        wanted = NameFilter(include=tuple(self.include), exclude=tuple(self.exclude))
        names = [
            name for name in self.target.names(deadline) if not name.startswith(OWN_GROUPS) and wanted.accepts(name)
        ]
        on_target = self.target.committed(names, deadline)
        there = {
            name: {remote[place]: offset for place, offset in on_target[name].items() if place in remote}
            for name in names
            if name in on_target
        }
        there = {name: places for name, places in there.items() if places}
        troubles = [
            f"group {name} does not tell what it has committed on the target" for name in names if name not in on_target
        ]
        states = self.source.states(there, deadline)
        on_source = self.source.committed(there, deadline)
        groups = []
        for name, places in there.items():
            if name not in on_source:
                troubles.append(f"group {name} does not tell what it has committed on the source")
                continue
            here = {
                lane: on_source[name][at] for lane in places if (at := (lane.topic, lane.partition)) in on_source[name]
            }
            found = returning(
                name,
                self.chains,
                on_target=places,
                on_source=here,
                state_on_source=states.get(name, "active"),
                covered=covered,
            )
            groups.append(self._commit(found, troubles, deadline))
        return groups, troubles

    def _commit(self, group: ReturningGroup, troubles: list[str], deadline: Deadline) -> ReturningGroup:
        """What became of it."""
        try:
            self.source.commit(group.group, group.due(), deadline)
        except GroupIsActive:
            return replace(group, readiness="active_on_source")  # it has just woken up
        except Retriable as exc:
            troubles.append(f"the offsets of group {group.group} wait: {exc}")
            return replace(group, readiness="behind")
        return group
