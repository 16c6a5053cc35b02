"""Is a source topic still the one that was replicated? Its id, its ends, whether it is gone, and whether it came late.

What is known of a topic is the document `topic/<topic>`, written only when it changes. How far the partitions reached
at the last look stands for many topics in one document (`topic-ends/<n>`), since that changes all the time. The
document `topics` holds what was there when the flow first looked, so that whatever comes later begins at its first
record.

A topic that was deleted and created again has another id. Its offsets restart, so what the chains say is no longer
about these records: every lane with a chain stops, and the old id is kept until the operator has reset them all.

A topic that was truncated (an unclean election of a leader) keeps its id, and its end moves backwards. The positions of
lanes are read only then: reading them at every look would cost one query for every lane. So a truncation is seen if a
refresh sees the end lower than an earlier one did; if the topic has grown past that mark in between, the forwarder
finds it when it compares what comes again with the chain.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec
from msgspec.structs import replace

from mirrorless.lane import FlowName
from mirrorless.lane_state import NEW_LANE, Head, Stop
from mirrorless.ports.kafka import TopicPartition

UNKNOWN: Final = -1
"""An end that no look has told yet."""

_CHUNK: Final = 2000
"""Topics in one document of ends: far below what an item holds, and few items for small flows."""


class Recreated(msgspec.Struct, frozen=True):
    """What a topic waits for that was deleted and created again."""

    topic_id: str
    """The id that it has now."""
    waiting: dict[int, int]
    """By partition, the generation that the operator has to end by a reset."""


class SeenTopic(msgspec.Struct, frozen=True):
    """The document `topic/<topic>`: what is known of a source topic that the flow takes."""

    topic: str
    topic_id: str
    """Of the topic that the chains are about."""
    partitions: int
    first_seen: int
    """ms since the epoch."""
    late: bool = False
    """Whether it was created after the flow first looked: then it begins at its first record, whatever `start` says."""
    start: tuple[int, ...] = ()
    """Upstream offsets by partition at which the flow begins; empty for each partition's first record."""
    start_committed: bool = False
    """Whether `start` was committed for the mapping's consumer group, or found to be committed."""
    mapping_update: str = ""
    """The last update of its mapping, until it was seen to have taken effect."""
    gone_at: int | None = None
    """When it was first missed on the source, ms since the epoch."""
    recreated: Recreated | None = None


class FlowStart(msgspec.Struct, frozen=True):
    """The document `topics`: what was on the source when the flow first looked. Written once."""

    at: int
    """ms since the epoch."""
    topics: tuple[str, ...]


TopicEnds = dict[str, list[int]]
"""Topic -> the upstream offset behind the last record, by partition."""


class Memory(msgspec.Struct, frozen=True):
    """What earlier rounds have written."""

    beginning: FlowStart | None
    """None before the flow first looked."""
    topics: dict[str, SeenTopic]
    ends: TopicEnds

    @classmethod
    def of(cls, documents: Mapping[str, bytes]) -> Memory:
        """Read the documents `topics`, `topic/...` and `topic-ends/...`."""
        beginning = documents.get("topics")
        seen = [msgspec.json.decode(text, type=SeenTopic) for text in _under("topic/", documents)]
        ends: TopicEnds = {}
        for text in _under("topic-ends/", documents):
            ends |= msgspec.json.decode(text, type=TopicEnds)
        return cls(
            beginning=None if beginning is None else msgspec.json.decode(beginning, type=FlowStart),
            topics={each.topic: each for each in seen},
            ends=ends,
        )

    def news(self, seen: Mapping[str, SeenTopic], ends: TopicEnds) -> dict[str, bytes]:
        """The documents to write so that the next round knows this."""
        topics = {
            f"topic/{topic}": msgspec.json.encode(each)
            for topic, each in seen.items()
            if self.topics.get(topic) != each
        }
        old_ends = _encode_ends(self.ends)
        new_ends = dict.fromkeys(old_ends, b"{}") | _encode_ends(ends)
        return topics | {key: text for key, text in new_ends.items() if old_ends.get(key) != text}


def start_of(start: str) -> str | int | None:
    """Where topics begin that were there before the flow: None for their first record, `latest`, or ms since the epoch.

    Where a backfill brings the history, the mapping begins at the end.

    Raises:
        ValueError: neither a word that is known nor a moment.
    """
    if start == "earliest":
        return None
    return "latest" if start in {"latest", "backfill"} else int(datetime.fromisoformat(start).timestamp() * 1000)


def look(seen: SeenTopic, *, partitions: int) -> SeenTopic:
    """What is known of a topic once it was found with the id that it should have."""
    return replace(seen, partitions=max(partitions, seen.partitions), gone_at=None, recreated=None)


def look_at_recreated(seen: SeenTopic, *, topic_id: str, partitions: int, heads: Mapping[int, Head]) -> SeenTopic:
    """What is known of a topic that was found with another id.

    Args:
        seen: what was known.
        topic_id: the id that it has now.
        partitions: how many it has now.
        heads: of its lanes, of as many partitions as it ever had; see `lanes_of`.

    Returns:
        the document: with the lanes that wait for a reset, or the new id if none does. A lane without a chain waits for
        nothing: it begins with the new topic.
    """
    known = seen.recreated
    waiting = (
        known.waiting
        if known is not None and known.topic_id == topic_id
        else {partition: head.generation for partition, head in heads.items() if head != NEW_LANE}
    )
    waiting = {
        partition: generation for partition, generation in waiting.items() if heads[partition].generation <= generation
    }
    if not waiting:
        # Where the flow began with the old topic says nothing about the new one.
        return replace(
            seen,
            topic_id=topic_id,
            partitions=partitions,
            late=True,
            start=(),
            start_committed=False,
            gone_at=None,
            recreated=None,
        )
    return replace(
        seen,
        partitions=max(partitions, seen.partitions),
        gone_at=None,
        recreated=Recreated(topic_id=topic_id, waiting=waiting),
    )


def look_at_gone(seen: SeenTopic, *, now: int) -> SeenTopic:
    """What is known of a topic that is not on the source."""
    return seen if seen.gone_at is not None else replace(seen, gone_at=now)


def recreated_stop(flow: FlowName, seen: SeenTopic, partition: int, *, now: int) -> Stop:
    """The stop of a lane whose topic is another one now."""
    topic_id = seen.recreated.topic_id if seen.recreated is not None else ""
    return Stop(
        reason="recreated",
        upstream_offset=0,
        detail=f"the topic was deleted on the source and created again: its id was {seen.topic_id} and is {topic_id}. "
        f"To replicate the new topic from its first record: {reset_command(flow, seen.topic, partition, 'earliest')}",
        at=now,
    )


def truncated_stop(flow: FlowName, place: TopicPartition, *, end: int, position: int, now: int) -> Stop:
    """The stop of a lane that has replicated more than the source still has."""
    return Stop(
        reason="truncated",
        upstream_offset=end,
        detail=f"the source ends at {end} and was replicated up to {position}: it lost what it had acknowledged, and "
        "offsets from there on are given again to other records. To go on with those: "
        f"{reset_command(flow, *place, str(end))}",
        at=now,
    )


def reset_command(flow: FlowName, topic: str, partition: int | str, to: str) -> str:
    """The operator's command that closes a lane's chain."""
    return f"mirrorless lanes reset '{flow}' {topic} {partition} --to {to}"


def receded(before: TopicEnds, now: Mapping[TopicPartition, int]) -> list[TopicPartition]:
    """The partitions that end below where they were seen to end."""
    return [place for place, end in now.items() if end < last_end(before, place)]


def last_end(ends: TopicEnds, place: TopicPartition) -> int:
    """Where a partition was last seen to end; -1 when it never was."""
    topic, partition = place
    of_topic = ends.get(topic, [])
    return of_topic[partition] if partition < len(of_topic) else UNKNOWN


def unfinished(positions: Sequence[int], ends: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Of a topic that is gone, the partitions not known to be replicated to their end: position and end."""
    return {
        partition: (position, end)
        for partition, (position, end) in enumerate(zip(positions, ends, strict=False))
        if position < end
    }


def merged_ends(
    before: TopicEnds, now: Mapping[TopicPartition, int], counts: Mapping[str, int], keep: Collection[str]
) -> TopicEnds:
    """The ends to remember: of topics taken as seen now or else before, of those in `keep` as before."""
    merged = {topic: ends for topic, ends in before.items() if topic in keep}
    for topic, count in counts.items():
        merged[topic] = [
            now.get((topic, partition), last_end(before, (topic, partition))) for partition in range(count)
        ]
    return merged


def _encode_ends(ends: TopicEnds) -> dict[str, bytes]:
    """The documents of ends, by key."""
    topics = sorted(ends)
    return {
        f"topic-ends/{start // _CHUNK}": msgspec.json.encode(
            {topic: ends[topic] for topic in topics[start : start + _CHUNK]}
        )
        for start in range(0, len(topics), _CHUNK)
    }


def _under(prefix: str, documents: Mapping[str, bytes]) -> Iterator[bytes]:
    return (text for key, text in documents.items() if key.startswith(prefix))
