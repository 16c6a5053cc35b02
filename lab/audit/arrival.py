"""The wait until a topic is replicated, whoever replicates it: until the positions are behind all its records."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

from lab.audit.topic_reader import read_topic, stable_ends
from lab.cloud import Lab, addresses
from mirrorless.adapters.dynamodb.chains import DynamoDbChains
from mirrorless.chain.lane import Lane
from mirrorless.config.flow import Flow
from mirrorless.errors import Retriable

LOOK_EVERY_SECONDS = 0.2


class TopicArrival:
    """The records of one topic, whose producers are done, and how far they are replicated."""

    def __init__(self, lab: Lab, flow: Flow, topic: str) -> None:
        """Args: flow: with clusters at addresses that nothing stands before."""
        self._flow = flow
        self._topic = topic
        self._chains = DynamoDbChains(lab.dynamodb.client(), lab.tables.offset_map)
        self._last: Mapping[int, int] | None = None
        """The offset behind the last visible record of each partition."""

    def wait(self, deadline: float) -> None:
        """Wait until everything is replicated.

        Args:
            deadline: on the clock of `time.monotonic`.

        Raises:
            TimeoutError: with the offsets that are missing, or what a server says.
        """
        pause = threading.Event()
        while obstacle := self._obstacle():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self._flow.name} {self._topic} is not replicated in time: {obstacle}")
            pause.wait(LOOK_EVERY_SECONDS)

    def _obstacle(self) -> str:
        """Why the topic is not replicated; empty when it is."""
        try:
            if self._last is None:
                self._last = self._visible()
            lanes = {partition: Lane(self._flow.name, self._topic, partition) for partition in self._last}
            heads = self._chains.heads(lanes.values())
        except Retriable as exc:
            return str(exc)  # a killed server is on its way back; the deadline decides
        left = {
            partition: f"{heads[lane].position} of {self._last[partition]}"
            for partition, lane in lanes.items()
            if heads[lane].position < self._last[partition]
        }
        return f"positions, by partition: {left}" if left else ""

    def _visible(self) -> dict[int, int]:
        source = addresses(self._flow.source)
        records = read_topic(source, self._topic, stable_ends(source, self._topic))
        return {partition: found[-1].offset + 1 for partition, found in records.items() if found}
