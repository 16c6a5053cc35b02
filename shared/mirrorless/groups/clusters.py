"""The two clusters of a flow, and the reads of their consumer groups."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

from mirrorless.clock import Deadline
from mirrorless.errors import Retriable, few
from mirrorless.groups.checkpoints import Direction, GroupPositions, TranslatedGroup, translated_by_name
from mirrorless.mm2.internal_records import CircuitBreaker
from mirrorless.ports.kafka import Groups, GroupState, InternalTopics, OffsetAndMetadata, TopicPartition
from mirrorless.scheduled.runner import RoundReport
from mirrorless.scheduled.scope import FlowScope

DIRECTIONS: Final[tuple[Direction, ...]] = ("forward", "reverse")

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSide:
    """One cluster of the flow."""

    alias: str
    groups: Groups
    topics: InternalTopics


@dataclass(slots=True, kw_only=True)
class Sides:
    """Both clusters of the flow. Work on the target continues while the source does not answer."""

    source: GroupSide
    target: GroupSide
    clock: Callable[[], int]
    """ms since the epoch."""
    _breaker: CircuitBreaker = field(init=False)
    _log_breaker: CircuitBreaker = field(init=False)

    def __post_init__(self) -> None:
        """Make the breakers of the source."""
        self._breaker = CircuitBreaker(alias=self.source.alias, clock=self.clock)
        self._log_breaker = CircuitBreaker(alias=self.source.alias, clock=self.clock, behind=self._breaker)

    def here(self, direction: Direction) -> GroupSide:
        """The side where the groups' commits are read."""
        return self.source if direction == "forward" else self.target

    def there(self, direction: Direction) -> GroupSide:
        """The other side."""
        return self.target if direction == "forward" else self.source

    def call(self, cluster: GroupSide, call: Callable[[Deadline], _T], deadline: Deadline) -> _T:
        """Call one side; the source through its circuit breaker.

        Raises:
            Retriable: it does not answer.
        """
        return self._breaker.call(call, deadline) if cluster is self.source else call(deadline)

    def ask_source_log(self, call: Callable[[Deadline], _T], deadline: Deadline) -> _T:
        """Ask for something of the source's logs. A partition that nobody serves hinders no question about groups.

        Raises:
            Retriable: it does not answer.
        """
        return self._log_breaker.call(call, deadline)


def read_committed(
    sides: Sides, scope: FlowScope, report: RoundReport, deadline: Deadline
) -> tuple[GroupPositions | None, GroupPositions]:
    """The offsets that the groups have committed on the source (None when it does not answer) and on the target.

    Raises:
        Retriable: the target does not answer.
    """
    source, target = sides.source, sides.target
    with ThreadPoolExecutor(1) as pool:
        read = partial(_read_one, source, scope, report)
        from_source = pool.submit(sides.call, source, read, deadline)
        on_target = {
            name: scope.on_target(offsets) for name, offsets in _read_one(target, scope, report, deadline).items()
        }
        try:
            on_source = from_source.result()
        except Retriable as exc:
            report.troubles.append(f"the groups of {source.alias} cannot be read: {exc}")
            return None, on_target
    return {name: scope.on_source(offsets) for name, offsets in on_source.items()}, on_target


def _read_one(
    cluster: GroupSide, scope: FlowScope, report: RoundReport, deadline: Deadline
) -> dict[str, dict[TopicPartition, OffsetAndMetadata]]:
    names = [name for name in cluster.groups.names(deadline) if scope.group(name)]
    found = cluster.groups.committed(names, deadline)
    if unread := [name for name in names if name not in found]:
        which = f"group{'s' if unread[1:] else ''} {few(unread)}"
        report.troubles.append(f"{cluster.alias}: the commits of {which} cannot be read now")
    return found


def group_states(
    sides: Sides,
    groups: Sequence[TranslatedGroup],
    answered: Collection[Direction],
    report: RoundReport,
    deadline: Deadline,
) -> dict[tuple[Direction, str], GroupState]:
    """The states of groups on the other side, by direction and name. None where the source does not answer.

    Args:
        sides: both clusters.
        groups: of both directions.
        answered: the directions in which the other side's groups could be read.
        report: gets what went wrong.
        deadline: of the round.

    Raises:
        Retriable: the target does not answer.
    """
    found: dict[tuple[Direction, str], GroupState] = {}
    for direction in answered:
        cluster, named = sides.there(direction), translated_by_name(direction, groups)
        existing = [name for name, group in named.items() if group.exists_there]
        try:
            states = sides.call(cluster, partial(cluster.groups.states, existing), deadline) if existing else {}
        except Retriable as exc:
            if cluster is sides.target:
                raise
            report.troubles.append(f"the active groups of {cluster.alias} cannot be read: {exc}")
            continue
        found |= {(direction, name): states.get(name, "absent") for name in named}
    return found
