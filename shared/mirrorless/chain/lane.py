"""Names of flows and lanes, and their text forms.

A flow is `us-east->eu-west`; a lane is one source topic-partition of one flow, and the unit of order,
of position and of failure. Exactly once means once per lane.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

JOURNAL_LANES = 16
"""Neighbouring partitions of a topic whose lanes share a journal, see `mirrorless.chain.entry`."""

_T = TypeVar("_T")

ALIAS = re.compile(r"[a-z0-9-]+")
"""The form of a cluster alias, which is part of topic names, group ids and table keys."""


@dataclass(frozen=True, slots=True, order=True)
class FlowName:
    """A replication flow from one cluster alias to another, written `source->target` as MM2 does."""

    source: str
    target: str

    @classmethod
    def parse(cls, text: str) -> FlowName:
        """Read `source->target`.

        Raises:
            ValueError: when the text is not two different cluster aliases around `->`.
        """
        source, arrow, target = text.partition("->")
        if not arrow or not ALIAS.fullmatch(source) or not ALIAS.fullmatch(target):
            raise ValueError(f"{text!r} is not a flow: write source->target, aliases of a-z, 0-9 and hyphen")
        if source == target:
            raise ValueError(f"{text!r} replicates a cluster to itself")
        return cls(source, target)

    @property
    def turned(self) -> FlowName:
        """The flow in the other direction."""
        return FlowName(self.target, self.source)

    @property
    def slug(self) -> str:
        """The flow as consumer groups and transactional ids have it: `source.target`."""
        return f"{self.source}.{self.target}"

    def __str__(self) -> str:
        return f"{self.source}->{self.target}"


@dataclass(frozen=True, slots=True, order=True)
class Lane:
    """One source topic-partition of one flow."""

    flow: FlowName
    topic: str
    partition: int

    @property
    def is_of_a_job(self) -> bool:
        """Whether a job has made it for itself, such as `orders#replay`: a `#` is in no topic's name."""
        return "#" in self.topic

    @property
    def arguments(self) -> str:
        """The lane as a command has it: `'us-east->eu-west' orders 3`. The shell takes > for itself."""
        return f"'{self.flow}' {self.topic} {self.partition}"

    def at(self, upstream_offset: int) -> str:
        """Return the position of one record as text, for errors and logs."""
        return f"{self} @ {upstream_offset}"

    def __str__(self) -> str:
        return f"{self.flow} {self.topic}-{self.partition}"


def by_topic(values: Mapping[Lane, _T]) -> dict[str, dict[int, _T]]:
    """What lanes of one flow have, as documents hold it: by topic and partition, in order."""
    found: dict[str, dict[int, _T]] = {}
    for lane in sorted(values):
        found.setdefault(lane.topic, {})[lane.partition] = values[lane]
    return found


def by_lane(flow: FlowName, values: Mapping[str, Mapping[int, _T]]) -> dict[Lane, _T]:
    """The same back."""
    return {Lane(flow, topic, each): partitions[each] for topic, partitions in values.items() for each in partitions}
