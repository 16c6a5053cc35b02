"""Poller groups: which of a flow's provisioned mappings share event poller units.

A unit is paid by the hour and carries ten pollers; a mapping without a group has one of its own. A group takes mappings
of one VPC, 100 at most, with 2,000 maximum pollers in all. A mapping that changes its group stands still for up to 90
seconds, so it stays in its group while other topics come and go:

    literal topics  A template has no memory, so the group follows from the names: it is one group, and where that would
                    be too full, its two halves by a hash of the topic, and so on. A half has a name of its own: only
                    the mappings of a group that is divided move, all of them once, and none is overfull while they do.
    found topics    A new mapping goes to the first group that has room by what Lambda lists: that of its hash among
                    literal topics, then those of found topics in their order. The others stay.

Neither side counts the other's mappings. Literal topics fill three fifths of a group at most; a fifth is for found
topics, and a fifth for the mappings that a deployment makes before it deletes others.
(https://docs.aws.amazon.com/lambda/latest/api/API_ProvisionedPollerConfig.html,
https://docs.aws.amazon.com/lambda/latest/dg/kafka-scaling-modes.html,
https://docs.aws.amazon.com/lambda/latest/dg/kafka-starting-positions.html)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from hashlib import sha256
from itertools import chain, count
from typing import Final

from mirrorless.chain.lane import FlowName
from mirrorless.flow.naming import DEPLOYMENT, resource_name

MAPPINGS_OF_A_GROUP: Final = 100
POLLERS_OF_A_GROUP: Final = 2_000
"""Mappings of one group, and their maximum pollers in total, by the Lambda API."""


def flow_groups(flow: FlowName, *, deployment: str = DEPLOYMENT) -> str:
    """Return what the names of a flow's groups begin with. No alias has an underscore, which separates the rest."""
    return resource_name(flow, "pollers", deployment=deployment)


def are_groups_of(name: str, flow: FlowName) -> bool:
    """Whether a flow's groups begin with a name, whatever its deployment is called."""
    return name.endswith(flow_groups(flow).removeprefix(DEPLOYMENT))


def literal_group(groups: str, topic: str, literals: Collection[str], *, maximum_pollers: int) -> str:
    """Return the group of a literal topic's mapping.

    Args:
        groups: what the names of the flow's groups begin with.
        topic: the topic.
        literals: every literal topic of the flow.
        maximum_pollers: of each mapping.
    """
    halves = _halves(frozenset(literals), max(1, _room(maximum_pollers) * 3 // 5))
    return f"{groups}_literal{next(filter(_bits(topic).startswith, halves))}"


def groups_of_found(
    groups: str,
    topics: Iterable[str],
    present: Mapping[str, str],
    literals: Collection[str],
    *,
    maximum_pollers: int,
) -> dict[str, str]:
    """Return the groups of found topics' mappings.

    Args:
        groups: what the names of the flow's groups begin with.
        topics: the topics.
        present: the groups of the flow's mappings, by topic, as Lambda lists them; empty where a mapping has none.
        literals: every literal topic of the flow.
        maximum_pollers: of each mapping.
    """
    room, found = _room(maximum_pollers), f"{groups}_found"
    members: Counter[str] = Counter()
    chosen: dict[str, str] = {}

    def has_room(group: str) -> bool:
        return members[group] < (room if group.startswith(found) else room // 5)

    for topic, group in sorted(present.items()):
        # A group may have taken in more while each had fewer pollers.
        if topic not in literals and group.startswith(f"{groups}_") and has_room(group):
            members[group] += 1
            chosen[topic] = group
    for topic in sorted(set(topics) - chosen.keys()):
        beside = [literal_group(groups, topic, literals, maximum_pollers=maximum_pollers)] if literals else []
        group = next(filter(has_room, chain(beside, (f"{found}{number}" for number in count(1)))))
        members[group] += 1
        chosen[topic] = group
    return chosen


def _room(maximum_pollers: int) -> int:
    return min(MAPPINGS_OF_A_GROUP, POLLERS_OF_A_GROUP // maximum_pollers)


@cache
def _halves(topics: frozenset[str], most: int, half: str = "") -> tuple[str, ...]:
    """The beginnings of hashes that divide topics in halves, until each has so many at most."""
    members = frozenset(each for each in topics if _bits(each).startswith(half))
    if len(members) <= most:
        return (half,)
    return _halves(members, most, f"{half}0") + _halves(members, most, f"{half}1")


@cache
def _bits(topic: str) -> str:
    return f"{int.from_bytes(sha256(topic.encode()).digest()):0256b}"
