"""The topics that the function `pull` reads: a document that `refresh_topics` keeps, and the changes of triggers.

A topic is in the document while its trigger is `schedule` and its remote topic exists. A topic that changes back to
`mapping` stays until its mapping is enabled, so that its records do not wait for pollers meanwhile. So the document
also has what is to be changed back: every topic in it whose trigger is `mapping`.

    to a schedule   the topic enters the document, and its mapping is deleted. Until the pollers have left, both may
                    read it: the chain decides who replicates a record.
    to a mapping    the positions of the chains become the offsets of the mapping's group, once that has no members;
                    the mapping is created; once it is enabled, the topic leaves the document.

A lane without a chain begins where the group of its topic's mapping has a committed offset, otherwise at its first
record. `refresh_topics` commits the offsets at which a flow begins before a topic enters the document.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from mirrorless.chain.lane import FlowName
from mirrorless.clock import Deadline
from mirrorless.errors import MirrorlessError, Retriable
from mirrorless.ports.stores import StateStore
from mirrorless.scheduled.runner import RoundReport
from mirrorless.topics.discovery import Discovery
from mirrorless.topics.group_start import GroupStart
from mirrorless.topics.mapping_plan import NEAR_SECONDS
from mirrorless.topics.topic_state import TopicState

PREFIX: Final = "pull/topics"
"""The document's key; the store splits a document that is too large for one item."""

IDS: Final = "pull/ids"
"""The key of their ids: of the topics that the chains describe, until the lanes of one made anew are reset."""


def read_scheduled_topics(documents: StateStore, flow: FlowName) -> dict[str, int]:
    """The source topics that `pull` reads, with the numbers of their partitions.

    Raises:
        Retriable: the store does not answer.
    """
    stored = documents.read(flow, PREFIX).get(PREFIX)
    return {} if stored is None else msgspec.json.decode(stored, type=dict[str, int])


def read_scheduled_ids(documents: StateStore, flow: FlowName) -> dict[str, str]:
    """The ids of these topics, as far as they are known.

    Raises:
        Retriable: the store does not answer.
    """
    stored = documents.read(flow, IDS).get(IDS)
    return {} if stored is None else msgspec.json.decode(stored, type=dict[str, str])


def write_scheduled_topics(
    documents: StateStore, flow: FlowName, topics: Mapping[str, int], *, stored: Mapping[str, int]
) -> None:
    """Write the topics where they differ from the stored ones.

    Raises:
        Retriable: the store does not answer.
    """
    if dict(topics) != dict(stored):
        documents.write(flow, {PREFIX: msgspec.json.encode(topics, order="sorted")})


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledTopics:
    """The scheduled topics of one round."""

    read: Mapping[str, int]
    """Those that `pull` reads, with the numbers of their partitions."""
    returning: frozenset[str]
    """Those of them that change back to a mapping."""


def plan_scheduled(
    stored: Mapping[str, int],
    ready: Mapping[str, int],
    found: Discovery,
    *,
    enabled: Collection[str],
    just_gone: Collection[str] = (),
) -> ScheduledTopics:
    """Decide which topics `pull` reads.

    Args:
        stored: the document.
        ready: the topics that can be read and written, with the numbers of their partitions.
        found: the topics that the flow takes.
        enabled: topics whose mapping is enabled.
        just_gone: topics missing for the first time: the listing may have been incomplete.
    """
    returning = frozenset(stored.keys() & (set(found.taken) - found.scheduled) - set(enabled))
    kept = stored.keys() & (found.scheduled | set(just_gone))
    topics = (found.scheduled & ready.keys()) | kept | returning
    return ScheduledTopics(
        read={topic: ready.get(topic, stored.get(topic, 0)) for topic in sorted(topics)}, returning=returning
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledTopicSync:
    """Keeps the document of one flow."""

    flow: FlowName
    documents: StateStore
    start: GroupStart

    def sync(
        self,
        found: Discovery,
        states: Mapping[str, TopicState],
        ready: Mapping[str, int],
        *,
        enabled: Collection[str],
        just_gone: Collection[str],
        report: RoundReport,
        deadline: Deadline,
    ) -> ScheduledTopics:
        """One round.

        Args:
            found: the topics that the flow takes.
            states: their stored states.
            ready: those whose remote topic exists, with the numbers of partitions that both sides have.
            enabled: topics whose mapping is enabled.
            just_gone: topics missing for the first time.
            report: gets what went wrong, topic by topic.
            deadline: seconds that are left.

        Raises:
            Retriable: the store does not answer.
        """
        stored = read_scheduled_topics(self.documents, self.flow)
        begun = self._begin(found.scheduled & ready.keys() & states.keys() - stored.keys(), states, report, deadline)
        known = {topic: count for topic, count in ready.items() if topic in begun or topic in stored}
        plan = plan_scheduled(stored, known, found, enabled=enabled, just_gone=just_gone)
        if plan.read or stored:
            self._note_ids(plan.read, states)
        write_scheduled_topics(self.documents, self.flow, plan.read, stored=stored)
        report.counts |= {"topics-scheduled": len(plan.read), "topics-returning": len(plan.returning)}
        return plan

    def _note_ids(self, topics: Collection[str], states: Mapping[str, TopicState]) -> None:
        """Before the topics: what `pull` reads of one is of the one that was looked at. One that is gone keeps its."""
        stored = read_scheduled_ids(self.documents, self.flow)
        known = stored | {topic: states[topic].topic_id for topic in topics if topic in states}
        ids = {topic: known[topic] for topic in topics if topic in known}
        if ids != stored:
            self.documents.write(self.flow, {IDS: msgspec.json.encode(ids, order="sorted")})

    def _begin(
        self, topics: Collection[str], states: Mapping[str, TopicState], report: RoundReport, deadline: Deadline
    ) -> set[str]:
        """Commit the offsets at which the flow begins with new topics. Returns the topics that can be read."""
        begun: set[str] = set()
        for topic in sorted(topics):
            if deadline() < NEAR_SECONDS:
                break  # the next round goes on
            try:
                self.start.commit_start(states[topic], deadline)
            except MirrorlessError as exc:
                report.troubles.append(f"{self.flow} {topic}: not scheduled: {exc}")
                if isinstance(exc, Retriable):
                    break
                continue
            begun.add(topic)
        return begun
