"""Lanes with a refused record, which try again once the configs of their remote topic are others.

A record that was too large, or that had no key, may fit by now: the sync of configs came later than the record, an
operator has set what the stop advised, or a deployment changed the producers. So it is kept when the configs of remote
topics were last seen to change, and a lane that stopped before that is let go. If the record is refused again, the lane
stops again, later than the change, and waits for the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, Protocol

import msgspec

from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import Stop
from mirrorless.clock import Deadline
from mirrorless.flow.settings import FlowSettings
from mirrorless.ports.stores import StateStore
from mirrorless.ports.topics import ConfigEntry, TargetTopics
from mirrorless.protocol.map_reads import StoppedLanes
from mirrorless.scheduled.runner import RoundReport

DOCUMENT: Final = "remote-configs"

SKEW_MS: Final = 10_000
"""By which the clock of a function that stops a lane may be ahead of this one."""


class RefusedStops(StoppedLanes, Protocol):
    """The stopped lanes of a flow, which can be let go."""

    def retry(self, lane: Lane, stop: Stop) -> bool:
        """Let a lane try again, if this is its stop still. Returns whether it was.

        Raises:
            Retriable: when the store does not answer.
        """
        ...


class SeenConfigs(msgspec.Struct, frozen=True, array_like=True):
    """The configs of one remote topic as they were seen last."""

    digest: str
    changed_at: int
    """ms since the epoch, when they were first seen so; 0 where they were never seen otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedLanes:
    """The lanes of one flow that stopped at a refused record."""

    settings: FlowSettings
    target: TargetTopics
    documents: StateStore
    states: RefusedStops
    clock: Callable[[], int]
    """ms since the epoch."""

    def look(self, topics: Iterable[str], report: RoundReport, deadline: Deadline) -> None:
        """Look at the remote topics of lanes that are stopped, and let lanes try again. Args: topics: of the source.

        Raises:
            Retriable: the target or a store does not answer.
        """
        taken, stops = frozenset(topics), self._stops()
        remote = {self.settings.remote_topic(lane.topic) for lane in stops if lane.topic in taken}
        if remote:
            configs, _ = self.target.configs(remote, deadline)
            self._compare(configs, stops, report)

    def saw(self, configs: Mapping[str, Iterable[ConfigEntry]], report: RoundReport) -> None:
        """The same, by what the sync of configs has read, before it changes anything. Args: configs: by remote topic.

        Raises:
            Retriable: a store does not answer.
        """
        self._compare(configs, self._stops(), report)

    def _compare(
        self, configs: Mapping[str, Iterable[ConfigEntry]], stops: Mapping[Lane, Stop], report: RoundReport
    ) -> None:
        flow, now = self.settings.name, self.clock()
        stored = self.documents.read(flow, DOCUMENT).get(DOCUMENT)
        known = msgspec.json.decode(stored, type=dict[str, SeenConfigs]) if stored else {}
        seen = dict(known)
        for name, entries in configs.items():
            digest, before = self._digest(entries), known.get(name)
            if before is None or before.digest != digest:
                seen[name] = SeenConfigs(digest, 0 if before is None else now)
        if seen != known:
            self.documents.write(flow, {DOCUMENT: msgspec.json.encode(seen)})
        tried = [
            lane
            for lane, stop in stops.items()
            if (name := self.settings.remote_topic(lane.topic)) in configs
            and stop.at < seen[name].changed_at + SKEW_MS
            and seen[name].changed_at
            and self.states.retry(lane, stop)
        ]
        if tried:
            report.counts["lanes-tried-again"] = report.counts.get("lanes-tried-again", 0) + len(tried)

    def _stops(self) -> dict[Lane, Stop]:
        return {
            lane: state.stop
            for lane, state in self.states.stopped(self.settings.name).items()
            if state.stop is not None and state.stop.reason == "refused" and not lane.is_of_a_job
        }

    def _digest(self, entries: Iterable[ConfigEntry]) -> str:
        """Of all that decides whether a record is taken: the topic's configs, and the flow's own producers."""
        values = sorted((entry.name, entry.value) for entry in entries)
        text = msgspec.json.encode([values, sorted(self.settings.producer.items())])
        return sha256(text).hexdigest()[:16]
