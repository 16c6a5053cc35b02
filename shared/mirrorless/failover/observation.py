"""What a command sees before it changes anything: both clusters, topics, stopped and leased lanes, ACLs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec

from mirrorless.failover.effects import FailoverEffects
from mirrorless.failover.refusals import ObservedState
from mirrorless.failover.state import FailoverOrder, read_document
from mirrorless.lane import Lane
from mirrorless.lane_state import NEW_LANE
from mirrorless.ports.kafka import Deadline
from mirrorless.ports.stores import Chains
from mirrorless.topics.discovery import discover
from mirrorless.topics.topic_state import StoredTopics
from mirrorless.topics.write_fence import unguarded

ANSWER_SECONDS = 20.0
BLOCK = 16
"""Partitions that are tried at a time where their number is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What was seen, and the topics that the flow replicates."""

    seen: ObservedState
    topics: dict[str, int]
    """With their partitions; without heartbeats, which nobody's records are in."""


def observe(effects: FailoverEffects, order: FailoverOrder, *, back: bool) -> Observation:
    """Look at everything that a refusal may rest on.

    Raises:
        Retriable: a store does not answer, or a cluster that had answered before.
    """
    flow = effects.flow
    document = read_document(effects.documents, flow)
    seen = ObservedState(
        source_trouble=effects.source.answers(),
        target_trouble=effects.target.answers(),
        document=document,
        marked=bool(effects.settings.flow.origins),
        both_ways=effects.both_ways,
    )
    without_source = order.mode == "source-lost" and not back
    if seen.target_trouble or (seen.source_trouble and not without_source):
        return Observation(seen=seen, topics={})
    topics = known_topics(effects) if without_source else _replicated(effects)
    lanes = [Lane(flow, topic, partition) for topic, count in topics.items() for partition in range(count)]
    states, now = effects.states.read(lanes), effects.clock()
    seen = replace(
        seen,
        stopped=[str(lane) for lane, each in sorted(states.items()) if each.stop is not None and not each.fenced],
        leased=[
            str(lane) for lane, each in sorted(states.items()) if each.lease is not None and now < each.lease.until
        ],
        topics=len(topics),
    )
    if not back and order.mode == "planned" and order.fencing == "acl" and not effects.both_ways:
        seen = _with_acls(seen, effects, topics)
    return Observation(seen=seen, topics=topics)


def _with_acls(seen: ObservedState, effects: FailoverEffects, topics: dict[str, int]) -> ObservedState:
    if effects.settings.flow.source.authentication.type == "iam":
        return replace(seen, iam=True)
    acls = effects.source.acls.read(within(effects, ANSWER_SECONDS))
    if acls is None:
        return replace(seen, authorizer=False)
    return replace(seen, unguarded=unguarded(topics, acls))


def within(effects: FailoverEffects, seconds: float) -> Deadline:
    """A deadline from now on."""
    end = effects.clock() + int(seconds * 1000)
    return lambda: (end - effects.clock()) / 1000


def _replicated(effects: FailoverEffects) -> dict[str, int]:
    """The topics that the source has and the flow replicates."""
    settings = msgspec.structs.replace(effects.settings, heartbeats_replication=False)
    on_source = effects.source.partitions(within(effects, ANSWER_SECONDS))
    return {topic: on_source[topic] for topic in discover(on_source, settings).taken}


def known_topics(effects: FailoverEffects) -> dict[str, int]:
    """The topics that are known without the source: those of earlier refreshes, and literal ones with a chain."""
    settings, flow = msgspec.structs.replace(effects.settings, heartbeats_replication=False), effects.flow
    stored = StoredTopics.of(effects.documents.read(flow, "topic")).topics
    counts = {topic: state.partitions for topic, state in stored.items()}
    for topic in settings.topic_filter.literals:
        if topic not in counts and (found := _lanes_with_a_chain(effects.chains, effects, topic)):
            counts[topic] = found
    return {topic: counts[topic] for topic in discover(counts, settings).taken}


def _lanes_with_a_chain(chains: Chains, effects: FailoverEffects, topic: str) -> int:
    found = block = 0
    while True:
        lanes = [Lane(effects.flow, topic, partition) for partition in range(block, block + BLOCK)]
        heads = chains.heads(lanes)
        replicated = [lane.partition for lane in lanes if heads[lane] != NEW_LANE]
        if not replicated:
            return found
        found, block = replicated[-1] + 1, block + BLOCK
