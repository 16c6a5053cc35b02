"""The stored state of topics, and the pure decisions on re-created, truncated and deleted ones.

The state of a topic is the document `topic/<topic>`, written only when it changes. The ends of partitions change all
the time, so one document (`topic-ends/<n>`) holds those of as many topics as one write unit takes. The document
`topics` lists the topics that existed at the flow's first refresh: every later topic begins at its first record.

A topic that was deleted and created again has another id. Its offsets restart, so the chains no longer describe its
records: every lane with a chain stops, and the old id is kept until the operator has reset them all.

A topic that was truncated (an unclean leader election) keeps its id, and its end moves backwards. The positions of
lanes are read only then: reading them at every refresh would cost one query per lane. So a truncation is detected if a
refresh reads a lower end than an earlier one; where the topic has grown past that offset in between, by the lane check
(`mirrorless.lanes.log_comparison`), and of scheduled topics before they are read on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from itertools import count
from typing import Final

import msgspec
from msgspec.structs import replace

from mirrorless.chain.lane import FlowName
from mirrorless.chain.lane_state import NEW_LANE, Head, Stop
from mirrorless.flow.naming import reset_command
from mirrorless.ports.kafka import TopicPartition

UNKNOWN: Final = -1
"""An end that has not been read yet."""

UNTIL_RESET: Final = "stand still until they are reset"
"""In the sentences about topics that were created again."""

_ENDS: Final = 100
"""From which on a document takes no further topic: compressed, that is about a write unit of 1 KB."""


class Recreated(msgspec.Struct, frozen=True):
    """The pending resets of a topic that was deleted and created again."""

    topic_id: str
    """The new id."""
    waiting: dict[int, int]
    """By partition, the generation that the operator must end by a reset."""


class TopicState(msgspec.Struct, frozen=True):
    """The document `topic/<topic>`: the state of a source topic that the flow takes."""

    topic: str
    topic_id: str
    """Of the topic that the chains describe."""
    partitions: int
    first_seen: int
    """ms since the epoch."""
    late: bool = False
    """Whether it was created after the flow's first refresh: then it begins at its first record, despite `start`."""
    start: tuple[int, ...] = ()
    """Upstream offsets by partition at which the flow begins; empty for each partition's first record."""
    start_committed: bool = False
    """Whether the mapping's consumer group has `start` committed."""
    mapping_update: str = ""
    """The last update of its mapping, until it has taken effect."""
    mapping_moves: bool = False
    """Whether its mapping is deleted and made anew, for the source has other addresses, until the new one polls."""
    gone_at: int | None = None
    """When it was first missing on the source, ms since the epoch."""
    recreated: Recreated | None = None
    remote_topic_id: str = ""
    """Of the remote topic that the chains describe; empty until it was read."""
    remote_recreated: Recreated | None = None
    """The same of the remote topic, where that has another id."""


class FlowStart(msgspec.Struct, frozen=True):
    """The document `topics`: the source's topics at the flow's first refresh. Written once."""

    at: int
    """ms since the epoch."""
    topics: tuple[str, ...]


TopicEnds = dict[str, list[int]]
"""Topic -> the upstream offset after the last record, by partition."""


class StoredTopics(msgspec.Struct, frozen=True):
    """The documents of earlier rounds."""

    beginning: FlowStart | None
    """None before the flow's first refresh."""
    topics: dict[str, TopicState]
    ends: TopicEnds
    documents_of_ends: dict[str, bytes] = {}

    @classmethod
    def of(cls, documents: Mapping[str, bytes]) -> StoredTopics:
        """Read the documents `topics`, `topic/...` and `topic-ends/...`."""
        beginning = documents.get("topics")
        states = [
            msgspec.json.decode(text, type=TopicState) for key, text in documents.items() if key.startswith("topic/")
        ]
        documents_of_ends = {key: text for key, text in documents.items() if key.startswith("topic-ends/")}
        ends: TopicEnds = {}
        for text in documents_of_ends.values():
            ends |= msgspec.json.decode(text, type=TopicEnds)
        return cls(
            beginning=None if beginning is None else msgspec.json.decode(beginning, type=FlowStart),
            topics={each.topic: each for each in states},
            ends=ends,
            documents_of_ends=documents_of_ends,
        )

    def changed(self, states: Mapping[str, TopicState], ends: TopicEnds) -> dict[str, bytes]:
        """The documents that differ from the stored ones."""
        topics = {
            f"topic/{topic}": msgspec.json.encode(each)
            for topic, each in states.items()
            if self.topics.get(topic) != each
        }
        new_ends = {key: msgspec.json.encode(document) for key, document in self._placed(ends).items()}
        return topics | {key: text for key, text in new_ends.items() if self.documents_of_ends.get(key) != text}

    def _placed(self, ends: TopicEnds) -> dict[str, TopicEnds]:
        """The documents of ends. A topic stays in its own, or a write that is interrupted would lose it."""
        new = dict(ends)
        documents: dict[str, TopicEnds] = {}
        for key, text in self.documents_of_ends.items():
            stored = msgspec.json.decode(text, type=TopicEnds)
            documents[key] = {topic: new.pop(topic) for topic in stored if topic in new}
        room = {key: _ENDS - sum(map(len, document.values())) for key, document in documents.items()}
        free = [key for key in documents if room[key] > 0]
        for topic in sorted(new):
            if not free:
                key = next(key for number in count() if (key := f"topic-ends/{number}") not in documents)
                documents[key], room[key] = {}, _ENDS
                free = [key]
            documents[free[0]][topic] = new[topic]
            room[free[0]] -= len(new[topic])
            if room[free[0]] <= 0:
                free.pop(0)
        return documents


def start_of(start: str) -> str | int | None:
    """Where topics begin that existed before the flow: None for their first record, `latest`, or ms since the epoch.

    With `backfill` the mapping begins at the end; the backfill copies the history.

    Raises:
        ValueError: neither a keyword nor a moment.
    """
    if start == "earliest":
        return None
    return "latest" if start in {"latest", "backfill"} else int(datetime.fromisoformat(start).timestamp() * 1000)


def mark_present(state: TopicState, *, partitions: int) -> TopicState:
    """The state of a topic that has its stored id."""
    return replace(state, partitions=max(partitions, state.partitions), gone_at=None, recreated=None)


def mark_recreated(state: TopicState, *, topic_id: str, partitions: int, heads: Mapping[int, Head]) -> TopicState:
    """The state of a topic that has another id than the stored one.

    Args:
        state: the stored one.
        topic_id: the new id.
        partitions: the new number.
        heads: of the lanes of all partitions that it ever had.

    Returns:
        the state with the lanes that need a reset, or with the new id if none does. A lane without a chain needs none:
        it begins with the new topic.
    """
    if not (waiting := _waiting(state.recreated, topic_id, heads, lambda head: head != NEW_LANE)):
        # The start offsets of the old topic do not apply to the new one.
        return replace(
            state,
            topic_id=topic_id,
            partitions=partitions,
            late=True,
            start=(),
            start_committed=False,
            gone_at=None,
            recreated=None,
        )
    return replace(
        state,
        partitions=max(partitions, state.partitions),
        gone_at=None,
        recreated=Recreated(topic_id=topic_id, waiting=waiting),
    )


def mark_remote_present(state: TopicState, *, topic_id: str) -> TopicState:
    """The state of a topic whose remote topic has its stored id, or is seen for the first time."""
    return replace(state, remote_topic_id=topic_id, remote_recreated=None)


def mark_remote_recreated(state: TopicState, *, topic_id: str, heads: Mapping[int, Head]) -> TopicState:
    """The state of a topic whose remote topic has another id than the stored one.

    Args:
        state: the stored one.
        topic_id: the remote topic's new id.
        heads: of the lanes of all partitions.

    Returns:
        the state with the lanes that need a reset, or with the new id if none does. A lane without a run of its
        generation needs none: nothing in the map is of the old topic.
    """
    if not (waiting := _waiting(state.remote_recreated, topic_id, heads, lambda head: head.run is not None)):
        return mark_remote_present(state, topic_id=topic_id)
    return replace(state, remote_recreated=Recreated(topic_id=topic_id, waiting=waiting))


def _waiting(
    pending: Recreated | None, topic_id: str, heads: Mapping[int, Head], describes: Callable[[Head], bool]
) -> dict[int, int]:
    """The lanes that need a reset, each with its generation when that was seen. Args: describes: the old topic."""
    seen = {partition: head.generation for partition, head in heads.items() if describes(head)}
    if pending is None or pending.topic_id != topic_id:
        return seen
    return {
        partition: generation
        for partition, generation in pending.waiting.items()
        if partition in seen and seen[partition] <= generation
    }


def mark_gone(state: TopicState, *, now: int) -> TopicState:
    """The state of a topic that is not on the source."""
    return state if state.gone_at is not None else replace(state, gone_at=now)


def recreated_stop(state: TopicState, partition: int, *, partitions: int, now: int) -> Stop:
    """The stop of a lane whose topic was re-created. Args: partitions: of the new topic."""
    topic_id = state.recreated.topic_id if state.recreated is not None else ""
    detail = f"the topic was deleted on the source and created again: its id was {state.topic_id} and is {topic_id}"
    if partition >= partitions:
        detail += f", with {partitions} partitions, so this one is gone"
    return Stop(reason="recreated", upstream_offset=0, detail=detail, at=now, untrue_from=0)


def remote_recreated_stop(flow: FlowName, state: TopicState, partition: int, position: int, *, now: int) -> Stop:
    """The stop of a lane whose remote topic was re-created.

    Args:
        flow: the flow.
        state: with the new id.
        partition: of the lane.
        position: of its newest run, which is committed, so that a reset never takes it for a run in doubt.
        now: ms since the epoch.
    """
    topic_id = state.remote_recreated.topic_id if state.remote_recreated is not None else ""
    return Stop(
        reason="remote_recreated",
        upstream_offset=position,
        detail="the remote topic was deleted on the target and created again: its id was "
        f"{state.remote_topic_id} and is {topic_id}. To replicate the source topic from its first record: "
        f"`{reset_command(flow, state.topic, partition, 'earliest', reason='the remote topic was re-created')}`",
        at=now,
        untrue_from=0,
    )


def awaits_reset(flow: FlowName, trouble: str) -> str | None:
    """The topic whose lanes stand still until a reset, where a sentence of a round says so."""
    topic, found, _ = trouble.removeprefix(f"{flow} ").partition(": ")
    return topic if found and UNTIL_RESET in trouble else None


def receded(before: TopicEnds, now: Mapping[TopicPartition, int]) -> list[TopicPartition]:
    """The partitions that end below their stored end."""
    return [each for each, end in now.items() if end < last_end(before, each)]


def last_end(ends: TopicEnds, topic_partition: TopicPartition) -> int:
    """The stored end of a partition; -1 for none."""
    topic, partition = topic_partition
    of_topic = ends.get(topic, [])
    return of_topic[partition] if partition < len(of_topic) else UNKNOWN


def unfinished(positions: Sequence[int], ends: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Of a deleted topic, the partitions not replicated to their stored end: position and end."""
    return {
        partition: (position, end)
        for partition, (position, end) in enumerate(zip(positions, ends, strict=False))
        if position < end
    }


def merged_ends(
    before: TopicEnds, now: Mapping[TopicPartition, int], counts: Mapping[str, int], keep: Collection[str]
) -> TopicEnds:
    """The ends to store: of topics taken the new ones or else the stored, of those in `keep` the stored."""
    merged = {topic: ends for topic, ends in before.items() if topic in keep}
    for topic, partitions in counts.items():
        merged[topic] = [
            now.get((topic, partition), last_end(before, (topic, partition))) for partition in range(partitions)
        ]
    return merged
