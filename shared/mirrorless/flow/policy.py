"""MM2's replication policies, by MM2's rules: the name of a remote topic, and the origin of a topic by its name.

Both policies keep MM2's names, so that MM2's own clients (`MirrorClient`, `RemoteClusterUtils`) read what we write.
They differ from MM2 in one place, on purpose: when the cluster aliases are known, only they count as origins, and a
source topic named `orders.v1` is not taken for the topic `v1` of a cluster `orders`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from mirrorless.chain.lane import FlowName

HEARTBEATS_TOPIC = "heartbeats"
"""The topic of heartbeats on a flow's target. Its name has no separator."""

LEGAL_TOPIC = re.compile(r"[a-zA-Z0-9._-]+")
LONGEST_TOPIC = 249
"""Kafka's rule for topic names: these characters, at most this many, and neither `.` nor `..`."""


def is_legal_topic(name: str) -> bool:
    """Whether a Kafka broker would accept this topic name."""
    return bool(LEGAL_TOPIC.fullmatch(name)) and len(name) <= LONGEST_TOPIC and name not in {".", ".."}


class ReplicationPolicy(Protocol):
    """The names of a flow's remote and internal topics, and the origin of a topic by its name."""

    def prefix(self, alias: str) -> str:
        """Return what names of topics have for a cluster; in MM2 that is its alias, and here nearly always."""

    def remote_topic(self, source_alias: str, topic: str) -> str:
        """Return the name that `topic` of the cluster `source_alias` has on the target."""

    def topic_source(self, topic: str) -> str | None:
        """Return the alias that `topic` was replicated from last; None for a topic that originates here."""

    def upstream_topic(self, topic: str) -> str | None:
        """Return the name of `topic` one hop upstream; None for a topic that originates here."""

    def original_topic(self, topic: str) -> str:
        """Return the name of `topic` on its first cluster: every hop stripped."""

    def heartbeats_topic(self) -> str:
        """Return the topic that heartbeats are written to."""

    def offset_syncs_topic(self, other_alias: str) -> str:
        """Return MM2's offset-syncs topic; `other_alias` is the cluster at the other end of the flow."""

    def checkpoints_topic(self, source_alias: str) -> str:
        """Return the topic, on the target, that holds the checkpoints of the groups of `source_alias`."""

    def is_heartbeats_topic(self, topic: str) -> bool:
        """Whether `topic` is the heartbeats topic of this or of any upstream cluster."""

    def is_checkpoints_topic(self, topic: str) -> bool:
        """Whether `topic` holds checkpoints."""

    def is_mm2_internal_topic(self, topic: str) -> bool:
        """Whether `topic` belongs to the replication itself."""

    def is_internal_topic(self, topic: str) -> bool:
        """Whether `topic` belongs to Kafka or to the replication itself, and is never replicated."""

    def is_cycle(self, topic: str, flow: FlowName, *, strict: bool = True) -> bool:
        """Whether replicating `topic` of the flow's source would send a record back to a cluster that it came from.

        `strict` is the rule of MM2 4.4: a hop through the source or the target is a cycle. Otherwise the rule up to
        4.3: only a hop through the target is.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class DefaultPolicy:
    """`prefixed`: the remote topic of `orders` of cluster `us-east` is `us-east.orders`.

    Attributes:
        separator: between alias and topic.
        internal_topic_separator_enabled: whether checkpoints and offset-syncs topics use it too; otherwise `.`.
        aliases: the clusters that can be an origin. None: any text before a separator is one, as in MM2.
        prefixes: what names have in the place of an alias, by alias.
    """

    separator: str = "."
    internal_topic_separator_enabled: bool = True
    aliases: frozenset[str] | None = None
    prefixes: Mapping[str, str] = field(default_factory=dict)
    _starts: tuple[tuple[str, str], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        known = {*(self.aliases or ()), *self.prefixes}
        starts = ((f"{self.prefix(alias)}{self.separator}", alias) for alias in known)
        # A prefix may have the separator in it, as an alias of MM2 may.
        object.__setattr__(self, "_starts", tuple(sorted(starts, key=lambda each: -len(each[0]))))

    def prefix(self, alias: str) -> str:
        """See ReplicationPolicy."""
        return self.prefixes.get(alias, alias)

    def remote_topic(self, source_alias: str, topic: str) -> str:
        """See ReplicationPolicy."""
        return f"{self.prefix(source_alias)}{self.separator}{topic}"

    def topic_source(self, topic: str) -> str | None:
        """See ReplicationPolicy. `a.` has no source, `.b` has the empty source, `a..b` has `a`."""
        return hop[0] if (hop := self._hop(topic)) else None

    def upstream_topic(self, topic: str) -> str | None:
        """See ReplicationPolicy."""
        return hop[1] if (hop := self._hop(topic)) else None

    def _hop(self, topic: str) -> tuple[str, str] | None:
        """The alias that a topic was replicated from last, and its name there."""
        for start, alias in self._starts:
            rest = topic[len(start) :]
            if topic.startswith(start) and _has_text_beside(rest, self.separator):
                return alias, rest
        source, separator, rest = topic.partition(self.separator)
        if not separator or not _has_text_beside(rest, self.separator):
            return None
        # Heartbeats come from clusters beyond this configuration too, so their names are always read by MM2's rule.
        known = self.aliases is None or rest.split(self.separator)[-1] == HEARTBEATS_TOPIC
        return (source, rest) if known else None

    def original_topic(self, topic: str) -> str:
        """See ReplicationPolicy."""
        while (upstream := self.upstream_topic(topic)) is not None and upstream != topic:
            topic = upstream
        return topic

    def heartbeats_topic(self) -> str:
        """See ReplicationPolicy."""
        return HEARTBEATS_TOPIC

    def offset_syncs_topic(self, other_alias: str) -> str:
        """See ReplicationPolicy. On the source the other alias is the target's, on the target it is the source's."""
        separator = self._internal_separator
        return f"mm2-offset-syncs{separator}{self.prefix(other_alias)}{separator}internal"

    def checkpoints_topic(self, source_alias: str) -> str:
        """See ReplicationPolicy."""
        return f"{self.prefix(source_alias)}{self._checkpoints_suffix}"

    def is_heartbeats_topic(self, topic: str) -> bool:
        """See ReplicationPolicy."""
        return self.original_topic(topic) == HEARTBEATS_TOPIC

    def is_checkpoints_topic(self, topic: str) -> bool:
        """See ReplicationPolicy."""
        return topic.endswith(self._checkpoints_suffix)

    def is_mm2_internal_topic(self, topic: str) -> bool:
        """See ReplicationPolicy. MM2's rule since 4.0 (KIP-1074)."""
        internal = topic.startswith("mm2") and topic.endswith(f"{self._internal_separator}internal")
        return internal or self.is_checkpoints_topic(topic)

    def is_internal_topic(self, topic: str) -> bool:
        """See ReplicationPolicy."""
        return self.is_mm2_internal_topic(topic) or topic.startswith(("__", "."))

    def is_cycle(self, topic: str, flow: FlowName, *, strict: bool = True) -> bool:
        """See ReplicationPolicy."""
        seen = {flow.source, flow.target} if strict else {flow.target}
        while (source := self.topic_source(topic)) is not None:
            if source in seen:
                return True
            upstream = self.upstream_topic(topic)
            if upstream is None or upstream == topic:
                return False
            topic = upstream
        return False

    @property
    def _internal_separator(self) -> str:
        return self.separator if self.internal_topic_separator_enabled else "."

    @property
    def _checkpoints_suffix(self) -> str:
        return f"{self._internal_separator}checkpoints{self._internal_separator}internal"


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentityPolicy(DefaultPolicy):
    """`identity`: a remote topic keeps its name. Heartbeats alone are named as DefaultPolicy would.

    A name then does not contain a record's origin, so cycles of data topics cannot be detected: the configuration
    refuses flows in both directions instead, unless their copies carry it (`mirrorless.records.origin`).

    Attributes:
        source_alias: the cluster that counts as the source of every topic.
    """

    source_alias: str

    def remote_topic(self, source_alias: str, topic: str) -> str:
        """See ReplicationPolicy."""
        # The zero-argument super() does not survive a slotted dataclass, which is a second class object.
        return DefaultPolicy.remote_topic(self, source_alias, topic) if _looks_like_heartbeats(topic) else topic

    def topic_source(self, topic: str) -> str | None:
        """See ReplicationPolicy."""
        return DefaultPolicy.topic_source(self, topic) if _looks_like_heartbeats(topic) else self.source_alias

    def upstream_topic(self, topic: str) -> str | None:
        """See ReplicationPolicy."""
        return DefaultPolicy.upstream_topic(self, topic) if _looks_like_heartbeats(topic) else topic

    def is_cycle(self, topic: str, flow: FlowName, *, strict: bool = True) -> bool:  # noqa: ARG002 -- the protocol's signature
        """See ReplicationPolicy. Every topic comes from the source here: only the target closes a cycle, as in MM2."""
        return DefaultPolicy.is_cycle(self, topic, flow, strict=False)


def replication_policy(
    name: Literal["prefixed", "identity"],
    *,
    source_alias: str,
    separator: str = ".",
    internal_topic_separator_enabled: bool = True,
    aliases: frozenset[str] | None = None,
    prefixes: Mapping[str, str] | None = None,
) -> ReplicationPolicy:
    """Return the policy of a flow from the cluster `source_alias`; the rest as in DefaultPolicy."""
    if name == "identity":
        return IdentityPolicy(
            source_alias=source_alias,
            separator=separator,
            internal_topic_separator_enabled=internal_topic_separator_enabled,
            aliases=aliases,
            prefixes=prefixes or {},
        )
    return DefaultPolicy(
        separator=separator,
        internal_topic_separator_enabled=internal_topic_separator_enabled,
        aliases=aliases,
        prefixes=prefixes or {},
    )


def _has_text_beside(rest: str, separator: str) -> bool:
    """Java's `split` drops empty parts at the end: a name has a source only if something stands after the separator."""
    return any(rest.split(separator))


def _looks_like_heartbeats(topic: str) -> bool:
    return topic.endswith(HEARTBEATS_TOPIC)
