"""Can every topic of every flow arrive? Rules on topic names, on two flows that meet in one topic, and on cycles."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

from mirrorless.config.flow import LONGEST_GROUP
from mirrorless.config.problems import Path, Problem
from mirrorless.filters import is_literal
from mirrorless.policy import LONGEST_TOPIC

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mirrorless.config.flow import Flow
    from mirrorless.config.locations import Places
    from mirrorless.filters import NameFilter


def problems_with_topics(flow: Flow, places: Places) -> Iterator[Problem]:
    """Find what is wrong with the topics of one flow."""
    settings, wanted = flow.settings, flow.topics
    if not settings.topics and flow.enabled:
        hint = "add `topics: [orders]`, or `topics: .*` for every topic, or `enabled: false`"
        yield Problem(path=places.of(flow, "topics"), what="the flow has no topics", hint=hint)
    for index, topic in enumerate(settings.topics):
        path = places.of(flow, "topics", index)
        if is_literal(topic):
            yield from _literal(topic, wanted, flow, path)
        elif not settings.refresh_topics_enabled:
            hint = "write `refresh.topics.enabled: true`, or name the topics one by one"
            yield Problem(path=path, what=f"nothing looks for topics that match {topic!r}", hint=hint)
    separator = settings.replication_policy_separator
    for alias in sorted(flow.aliases):
        if separator in alias and settings.replication_policy == "prefixed":
            path = places.of(flow, "replication.policy.separator")
            what = f"{separator!r} is part of the alias {alias!r}: origins could not be read back from remote topics"
            yield Problem(path=path, what=what, hint="write a separator that no alias contains, for example `.` or `_`")


def problems_between(flows: Sequence[Flow], places: Places) -> Iterator[Problem]:
    """Find where enabled flows write into each other's remote topics, or would carry a record round for ever."""
    for one, other in combinations(flows, 2):
        if one.name.target == other.name.target:
            yield from _meeting(one, other, places)
    for cycle in _cycles([flow for flow in flows if flow.settings.replication_policy == "identity"]):
        if topic := _shared_topic(cycle):
            way = ", ".join(str(flow.name) for flow in cycle)
            what = f"records of {topic} would go round for ever ({way}): identity naming does not tell their origin"
            hint = "write `replication.policy: prefixed`, or name different topics in each of these flows"
            yield Problem(path=places.of(cycle[-1], "replication.policy"), what=what, hint=hint)


def _literal(topic: str, wanted: NameFilter, flow: Flow, path: Path) -> Iterator[Problem]:
    def problem(what: str, hint: str) -> Problem:
        return Problem(path=path, what=what, hint=hint)

    if len(topic) == 1:
        what = f"{topic!r} is one character long, and an event source mapping wants two or more"
        yield problem(what, "rename the topic, or leave it out: a backfill job can copy it")
    if flow.policy.is_internal_topic(topic):
        yield problem(f"{topic!r} is internal to Kafka or to the replication, and never replicated", "remove it")
    elif flow.policy.is_cycle(topic, flow.name):
        origin = flow.policy.original_topic(topic)
        yield problem(
            f"{topic!r} has been at one end of this flow already, which is a cycle", f"name the original, `{origin}`"
        )
    elif not wanted.accepts(topic):
        yield problem(f"{topic!r} is excluded by `topics.exclude`", "remove it here, or change the exclusion")
    if len(remote := flow.remote_topic(topic)) > LONGEST_TOPIC:
        what = f"its remote topic would have {len(remote)} characters, a topic has at most {LONGEST_TOPIC}"
        yield problem(what, "shorten the source's alias, or write `replication.policy: identity`")
    elif (length := len(flow.group_name(topic))) > LONGEST_GROUP:
        what = f"its consumer group would have {length} characters, Lambda takes {LONGEST_GROUP}"
        yield problem(what, "shorten the cluster aliases, or leave this topic to a pattern")


def _meeting(one: Flow, other: Flow, places: Places) -> Iterator[Problem]:
    """Two flows must not write one remote topic: each would take the other's records for its own, or for damage."""
    theirs = {one.remote_topic(topic) for topic in one.literal_topics}
    ours = [other.remote_topic(topic) for topic in other.literal_topics]
    meeting = next((f"{remote!r}" for remote in ours if remote in theirs), None)
    if meeting is None and one.settings.replication_policy == other.settings.replication_policy == "identity":
        meeting = _shared_topic((one, other))
    if meeting:
        what = f"{meeting} on {other.name.target} would be written by {one.name} and by {other.name}"
        hint = "write `replication.policy: prefixed` in one of the flows, or name different topics in each of them"
        yield Problem(path=places.of(other, "topics"), what=what, hint=hint)


def _cycles(flows: Sequence[Flow], way: tuple[Flow, ...] = ()) -> Iterator[tuple[Flow, ...]]:
    """Find every simple way round, each once: from its first flow in the document's order."""
    for index, flow in enumerate(flows):
        if not way:
            yield from _cycles(flows[index + 1 :], (flow,))
        elif flow.name.source == way[-1].name.target:
            longer = (*way, flow)
            if flow.name.target == way[0].name.source:
                yield longer
            elif flow.name.target not in {past.name.source for past in way}:
                yield from _cycles([rest for rest in flows if rest is not flow], longer)


def _shared_topic(cycle: Sequence[Flow]) -> str | None:
    """Name a topic that all these flows take. Whether patterns meet cannot be known, so they count as meeting."""
    wanted = [flow.topics for flow in cycle]
    for topic in (topic for each in wanted for topic in each.literals):
        if all(each.accepts(topic) for each in wanted):
            return f"{topic!r}"
    patterns = [each.patterns for each in wanted]
    return f"topics that match {patterns[0][0]!r}" if all(patterns) else None
