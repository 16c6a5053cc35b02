"""How does a reconcile make sure that the forwarder stands still, also when the job itself dies? Lanes are held."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mirrorless.adapters.dynamodb.lane_states import DynamoDbLaneStates
from mirrorless.lane import Lane
from mirrorless.lane_state import LaneState, Stop
from mirrorless.reconcile.inspect import HELD
from spark.driver import now


@dataclass(slots=True, kw_only=True)
class HeldLanes:
    """The stops of reason `held` of one job run's lanes."""

    states: DynamoDbLaneStates
    run_id: str
    settle_ms: int
    """For how long a warm forwarder may not have seen that its lane is held."""

    def since(self, lanes: Sequence[Lane]) -> int | None:
        """When the first of them was held, ms since the epoch; None when none is."""
        return min((stop.at for stop in self._stops(lanes).values() if stop.reason == HELD), default=None)

    def hold(self, lanes: Sequence[Lane]) -> str:
        """Hold what nobody held, and wait until every environment has seen it; what is to be told about that."""
        stops = self._stops(lanes)
        loose = [lane for lane in lanes if lane not in stops]
        for lane in loose:
            detail = f"held by job run {self.run_id}"
            self.states.stop(lane, Stop(reason=HELD, upstream_offset=0, detail=detail, at=now()))
        newest = now() if loose else max((stop.at for stop in stops.values() if stop.reason == HELD), default=0)
        # Environments cannot be asked, but none trusts what it remembers of a lane for longer than this.
        time.sleep(max(0, newest + self.settle_ms - now()) / 1000)
        if not loose:
            return ""
        return (
            f"{len(loose)} lanes were not held: what the forwarder brought over since the source came back counts as "
            "replicated; hold the flow's lanes as soon as its source is lost"
        )

    def release(self, lanes: Iterable[Lane]) -> None:
        """Let the flow run live again."""
        for lane, stop in self._stops(list(lanes)).items():
            if stop.reason == HELD:
                self.states.resume(lane)

    def _stops(self, lanes: Sequence[Lane]) -> dict[Lane, Stop]:
        states = self.states.read(lanes)
        found = {lane: states.get(lane, LaneState()).stop for lane in lanes}
        return {lane: stop for lane, stop in found.items() if stop is not None}
