"""Which lanes does a flow have, when its source does not say? Those with a chain, and those that the watch has seen."""

from __future__ import annotations

from cli.deployment import Stores
from mirrorless.lane import FlowName, Lane
from mirrorless.lane_state import NEW_LANE
from mirrorless.ports.stores import Chains

BLOCK = 16
"""Partitions that are tried at a time where nobody can tell how many there are."""


def lanes_with_a_chain(chains: Chains, flow: FlowName, topic: str) -> int:
    """One more than the highest partition with a chain: tried block by block, until a whole block has none."""
    found = block = 0
    while True:
        lanes = [Lane(flow, topic, partition) for partition in range(block, block + BLOCK)]
        heads = chains.heads(lanes)
        replicated = [lane.partition for lane in lanes if heads[lane] != NEW_LANE]
        if not replicated:
            return found
        found, block = replicated[-1] + 1, block + BLOCK


def partitions_seen(stores: Stores, flow: FlowName) -> dict[str, int]:
    """The topics that the watch of topics knows, each with its partitions."""
    from mirrorless.topics.topic_state import Memory  # noqa: PLC0415 -- commands about one lane start sooner

    return {topic: seen.partitions for topic, seen in Memory.of(stores.documents.read(flow, "topic")).topics.items()}
