"""Names of a flow's topics and groups in IAM resources: literal where possible, otherwise ending with `*`.

IAM has no regular expressions: a pattern becomes the literal text that it begins with, and a `*`. What that covers
beyond the pattern, and what an exclusion takes out again, is allowed and never used. There is no Deny for literal
exclusions: the filter that keeps to them is ours, and so would be the fault that a Deny might catch.
"""

from __future__ import annotations

import re
from itertools import pairwise
from os.path import commonprefix
from typing import TYPE_CHECKING, Final

from mirrorless.flow.filters import NameFilter, is_literal
from mirrorless.flow.policy import HEARTBEATS_TOPIC
from mirrorless.flow.triggers import SCHEDULE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from mirrorless.config.flow import Flow

ORPHANS: Final = ".orphans"
"""What is added to a topic's name where `reconcile` puts records that were never replicated."""

SHORTEST_PREFIX: Final = 3
"""Characters of a beginning that is worth to be named: a shorter one is not far from all topics."""

_CHARACTER: Final = re.compile(r"\\([._-])|([A-Za-z0-9_-])")
"""One literal character of a topic's or a group's name, as a pattern may write it."""

_REPEATED: Final = ("*", "?", "{")
"""What may make the character before it absent."""


def source_topics(flow: Flow) -> tuple[str, ...]:
    """The source's topics that the flow takes, heartbeats among them."""
    heartbeats = _heartbeats(flow) if flow.settings.heartbeats_replication_enabled else ()
    return distinct([*data_topics(flow), *heartbeats])


def data_topics(flow: Flow) -> tuple[str, ...]:
    """The source's topics that the flow names, one by one or by their beginnings."""
    beginnings = (f"{prefix}*" for prefix in flow.settings.topics_rights_prefixes)
    return distinct([*flow.literal_topics, *prefixes(flow.topic_patterns), *beginnings])


def scheduled_topics(flow: Flow) -> tuple[str, ...]:
    """The source's topics that may be scheduled, or on their way back to mappings, heartbeats among them."""
    overrides = flow.settings.trigger_overrides
    if flow.settings.trigger == SCHEDULE or not overrides:
        return source_topics(flow)
    literal, patterns = filter(is_literal, overrides), [entry for entry in overrides if not is_literal(entry)]
    found = [_both(name, topic) for name in (*literal, *prefixes(patterns)) for topic in data_topics(flow)]
    if flow.settings.heartbeats_replication_enabled:
        here, above = _heartbeats(flow)
        remote_ones = [above.replace("*", prefix) for prefix in sorted(flow.prefixes.values())]
        for entry in overrides:
            matches = NameFilter(include=(entry,)).accepts
            found += [name for name in (here, *remote_ones) if is_literal(entry) and matches(name)]
            some = any(map(matches, (here, *remote_ones)))
            found += [name for name in (here, above) if not is_literal(entry) and some]
    return distinct(filter(None, found))


def _both(one: str, other: str) -> str:
    """The names that two names cover, each of which may end with `*`; empty where they have none in common."""
    for name, cover in ((one, other), (other, one)):
        if name == cover or (cover.endswith("*") and name.startswith(cover[:-1])):
            return name
    return ""


def remote(flow: Flow, topics: Iterable[str]) -> tuple[str, ...]:
    """What topics are called on the target. A name that ends with `*` is translated like any other."""
    return distinct(map(flow.remote_topic, topics))


def followed_groups(flow: Flow) -> tuple[str, ...]:
    """The consumer groups that the flow follows."""
    return distinct([*flow.groups.literals, *prefixes(flow.groups.patterns)])


def orphans(topics: Iterable[str]) -> tuple[str, ...]:
    """Where a job sets aside what was never replicated."""
    return distinct(f"{topic}{ORPHANS}" for topic in topics)


def prefixes(patterns: Iterable[str]) -> Iterator[str]:
    """The literal beginnings of names that match: `orders.*` gives `orders*`, `a-x|a-y` gives both, `.*` gives `*`."""
    for pattern in patterns:
        for branch in _branches(pattern):
            yield _beginning(branch)


def distinct(names: Iterable[str]) -> tuple[str, ...]:
    """Names in order, without those that another one with a `*` at its end covers."""
    wanted = sorted(set(names))
    starts = [name[:-1] for name in wanted if name.endswith("*") and "*" not in name[:-1]]
    return tuple(name for name in wanted if not any(name.startswith(start) and name != f"{start}*" for start in starts))


def fewest_prefixes(names: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """Beginnings that names have in common, the longest first, then shorter and fewer ones."""
    ordered = sorted(set(names))
    alike = [len(commonprefix(pair)) for pair in pairwise(ordered)]  # noqa: RUF071 -- characters are meant
    for least in sorted((length for length in set(alike) if length >= SHORTEST_PREFIX), reverse=True):
        found = {ordered[at][:length] for at, length in enumerate(alike) if length >= least}
        yield tuple(one for one in sorted(found) if not any(one != other and one.startswith(other) for other in found))


def _heartbeats(flow: Flow) -> tuple[str, ...]:
    """Heartbeats of the source itself, and those that came there from other clusters, over any path."""
    return HEARTBEATS_TOPIC, f"*{flow.settings.replication_policy_separator}{HEARTBEATS_TOPIC}"


def _branches(pattern: str) -> Iterator[str]:
    """The alternatives of a pattern."""
    depth, begin, skip = 0, 0, False
    in_class = False
    for at, character in enumerate(pattern):
        if skip:
            skip = False
        elif character == "\\":
            skip = True
        elif in_class:
            in_class = character != "]"
        elif character == "[":
            in_class = True
        elif character in "()":
            depth += 1 if character == "(" else -1
        elif character == "|" and depth == 0:
            yield pattern[begin:at]
            begin = at + 1
    yield pattern[begin:]


def _beginning(branch: str) -> str:
    rest, beginning = branch.removeprefix("^"), ""
    while found := _CHARACTER.match(rest):
        rest = rest[found.end() :]
        if rest.startswith(_REPEATED):
            return f"{beginning}*"
        beginning += found[1] or found[2]
    return f"{beginning}*" if rest else beginning
