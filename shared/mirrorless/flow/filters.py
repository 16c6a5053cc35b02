"""Filters of topics, groups and topic configs, as MM2 has them: included and not excluded.

A list has literal names (`orders`, `audit.log-v2`) and regular expressions (`orders-.*`); both match the whole name. A
literal is compared character by character: its dot is a dot, where MM2 lets it match any character.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mirrorless.flow.policy import LEGAL_TOPIC

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mirrorless.chain.lane import FlowName
    from mirrorless.flow.policy import ReplicationPolicy

TOPICS_EXCLUDE = (r"mm2.*\.internal", r".*\.replica", r"__.*")
"""MM2's default since 4.0."""

GROUPS_EXCLUDE = ("console-consumer-.*", "connect-.*", "__.*")
"""MM2's default."""

CONFIG_PROPERTIES_EXCLUDE = (
    "follower.replication.throttled.replicas",
    "leader.replication.throttled.replicas",
    "message.timestamp.difference.max.ms",
    "message.timestamp.before.max.ms",
    "message.timestamp.after.max.ms",
    "message.timestamp.type",
    "unclean.leader.election.enable",
    "min.insync.replicas",
)
"""MM2's default since 4.3, but the two timestamp bounds by their topic names (MM2 excludes the broker's)."""

TIMESTAMP_TYPE = "message.timestamp.type"
"""Never copied, whatever a flow excludes: the target must not rewrite what the digest proves."""


def split_list(text: str) -> tuple[str, ...]:
    """Read MM2's comma list: `orders, payments-.*` is two entries; blank entries are dropped.

    A comma inside braces belongs to its pattern (`a{1,3}`), so such a pattern need not be written as a YAML list.
    """
    entries = re.split(r",(?![^{]*\})", text)
    return tuple(entry.strip() for entry in entries if entry.strip())


def is_literal(entry: str) -> bool:
    """Whether an entry is one name and no pattern. `a.b` is a literal: a dot is legal in a name."""
    return bool(LEGAL_TOPIC.fullmatch(entry))


@dataclass(frozen=True, slots=True, kw_only=True)
class NameFilter:
    """Included and not excluded names; the exclusion wins. An empty include list takes nothing, as in MM2.

    Attributes:
        include: literal names and regular expressions.
        exclude: the same; what they match is never taken.

    Raises:
        ValueError: an entry is not a valid regular expression; the message has it.
    """

    include: Sequence[str]
    exclude: Sequence[str] = ()
    _included: _Names = field(init=False, repr=False, compare=False)
    _excluded: _Names = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_included", _Names.of(self.include))
        object.__setattr__(self, "_excluded", _Names.of(self.exclude))

    @property
    def literals(self) -> tuple[str, ...]:
        """The included names that are spelt out and not excluded, in the order written."""
        return tuple(entry for entry in self.include if is_literal(entry) and self.accepts(entry))

    @property
    def patterns(self) -> tuple[str, ...]:
        """The included entries that are regular expressions, in the order written."""
        return tuple(entry for entry in self.include if not is_literal(entry))

    def accepts(self, name: str) -> bool:
        """Whether this name is taken."""
        return self._included.match(name) and not self._excluded.match(name)


def should_replicate(
    topic: str, *, flow: FlowName, topics: NameFilter, policy: ReplicationPolicy, heartbeats: bool = True
) -> bool:
    """Whether a flow replicates this topic of its source: MM2's `shouldReplicateTopic`.

    With `heartbeats` every heartbeats topic is taken, also without a match: they measure chains of flows.
    """
    wanted = topics.accepts(topic) or (heartbeats and policy.is_heartbeats_topic(topic))
    return wanted and not policy.is_internal_topic(topic) and not policy.is_cycle(topic, flow)


def check_pattern(entry: str) -> str | None:
    """Return what is wrong with one entry of a list; None when it can be used."""
    if is_literal(entry):
        return None
    from mirrorless.flow.java_patterns import in_python  # noqa: PLC0415 -- kept out of cold starts

    python = in_python(entry)
    if python != entry and check_pattern(python) is None:
        return f"{entry!r} is in Java's form"
    try:
        with warnings.catch_warnings():
            # Python warns of what may become an operator, as in `[a--b]`.
            warnings.simplefilter("error", FutureWarning)
            _compiled(entry)
    except FutureWarning as exc:
        return f"{entry!r} is ambiguous: {str(exc).lower()}"
    except re.error as exc:
        place = "" if exc.pos is None else f" at character {exc.pos + 1}"
        return f"{entry!r} is not a valid regular expression: {exc.msg}{place}"
    return None


def _compiled(entry: str) -> re.Pattern[str]:
    # `\w`, `\d` and `(?i)` are of ASCII in Java.
    return re.compile(entry, re.ASCII)


@dataclass(frozen=True, slots=True)
class _Names:
    """A list of names and patterns, compiled: a literal costs one look-up, however many there are."""

    literals: frozenset[str]
    patterns: tuple[re.Pattern[str], ...]

    @classmethod
    def of(cls, entries: Sequence[str]) -> _Names:
        """Compile each pattern alone: joined into one expression, their groups and inline flags would meet."""
        for entry in entries:
            if problem := check_pattern(entry):
                raise ValueError(problem)
        literals = frozenset(entry for entry in entries if is_literal(entry))
        return cls(literals, tuple(_compiled(entry) for entry in entries if entry not in literals))

    def match(self, name: str) -> bool:
        """Whether this name is in the list or fits a pattern."""
        return name in self.literals or any(pattern.fullmatch(name) for pattern in self.patterns)
