"""Records on remote partitions that their flow has not written: another producer's, or older than the flow.

A second deployment, or a MirrorMaker 2 that still runs, writes the same records a second time, and nothing in the chain
shows it. Beside the runs of a partition there is room for transactions' markers and for what was aborted. Where there
is more, a short read_committed read shows whether anybody sees a record there.

Nothing of the flow's own is met there: the stable end is read before the head, so whatever is visible below it had been
prepared before. That holds in transactions only, and where nobody else is meant to write.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from mirrorless.chain.claims import MARKER
from mirrorless.chain.lane import FlowName, Lane
from mirrorless.chain.lane_state import NEW_LANE, RUNNING, Head
from mirrorless.clock import Deadline
from mirrorless.errors import Retriable, few
from mirrorless.flow.counts import Count
from mirrorless.lanes.chain_scan import ChainScan
from mirrorless.lanes.check_state import RECENT_MS, UNKNOWN, LaneNotes
from mirrorless.lanes.gaps import UNREAD, GapRange, LogLooks
from mirrorless.ports.stores import LaneStates
from mirrorless.scheduled.runner import RoundReport

FOREIGN: Final[Count] = "lanes-foreign"
"""Lanes with a foreign record that was seen lately."""

LOOK_AGAIN_MS: Final = RECENT_MS // 2
"""After a foreign record was seen, the lane is not looked at for so long."""

NAMED: Final = 5
"""Partitions that a sentence names; the others are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedLane:
    """A lane whose chain was scanned in this round."""

    scan: ChainScan
    head: Head
    """As it was read before the scan."""
    notes: LaneNotes
    """From before it."""
    start: int
    """Where the remote partition begins."""
    stable: int
    """Its last stable offset, read before the head."""

    def beside(self) -> list[GapRange]:
        """The downstream offsets that no run claims, where there is room for records."""
        scan, pieces = self.scan, list(self.scan.beside)
        if self.head == NEW_LANE:
            pieces = [(self.notes.claimed, self.stable)]
        elif scan.complete and scan.doubt is None and scan.claimed != UNKNOWN:
            pieces += [(scan.claimed, self.stable)] if self.stable - scan.claimed > MARKER else []
        return [(max(first, self.start), end) for first, end in pieces if max(first, self.start) < end]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignCheck:
    """Looks for foreign records beside the runs of scanned lanes."""

    remote_topic: Callable[[str], str]
    target: LogLooks
    states: LaneStates
    alone: Callable[[Collection[str]], Collection[str]]
    """Of some topics those that the source has, and whose remote topics nobody but the flow is to write to."""

    def look(
        self, lanes: Mapping[Lane, ScannedLane], report: RoundReport, deadline: Deadline, *, now: int
    ) -> dict[Lane, LaneNotes]:
        """Look at these lanes.

        A lane that is stopped is left out: a stopped flow's remote topics are written to after a failover, and those of
        a held lane may be joined. So is one of which it was said a moment ago.

        Returns:
            the notes of lanes with a foreign record, and of those that could not be read to the end, which are
            scanned again from where they were.

        Raises:
            Retriable: a store does not answer.
        """
        wanted = {
            lane: pieces
            for lane, each in lanes.items()
            if not each.head.expired
            and not (each.notes.foreign != UNKNOWN and now - each.notes.foreign_at < LOOK_AGAIN_MS)
            and (pieces := each.beside())
        }
        states = self.states.read(wanted) if wanted else {}
        alone = self.alone({lane.topic for lane in wanted}) if wanted else ()
        wanted = {
            lane: pieces
            for lane, pieces in wanted.items()
            if lane.topic in alone and states.get(lane, RUNNING).stop is None
        }
        if not wanted:
            return {}
        places = {lane: (self.remote_topic(lane.topic), lane.partition) for lane in wanted}
        try:
            looks = self.target.look(
                {places[lane]: pieces for lane, pieces in wanted.items()}, committed=True, deadline=deadline
            )
        except Retriable as exc:
            report.troubles.append(f"records of other producers are looked for in the next round: {exc}")
            return {lane: lanes[lane].notes for lane in wanted}
        found = {}
        for lane, pieces in wanted.items():
            look, notes = looks.get(places[lane], UNREAD), lanes[lane].notes
            if look.visible:
                found[lane] = replace(notes, foreign=min(look.visible), foreign_at=now)
            elif look.until < pieces[-1][1]:
                found[lane] = replace(notes, claimed=max(notes.claimed, look.until))
        return found


def sentences(
    flow: FlowName, notes: Mapping[Lane, LaneNotes], remote_topic: Callable[[str], str], *, begun: bool = True
) -> Iterator[str]:
    """One sentence for each remote topic with foreign records. Args: begun: whether the flow writes to them already."""
    topics: dict[str, list[Lane]] = {}
    for lane in sorted(notes):
        if notes[lane].foreign != UNKNOWN:
            topics.setdefault(lane.topic, []).append(lane)
    for topic, lanes in topics.items():
        places = few((f"{lane.partition} @ {notes[lane].foreign}" for lane in lanes), NAMED)
        seen = (
            f"{flow} {topic}: {remote_topic(topic)} has records that this flow has not written, from partition and "
            f"downstream offset {places} on: "
        )
        if begun:
            yield (
                f"{seen}another producer writes there (a second deployment, a MirrorMaker that still runs), or they "
                "are older than the flow. Readers get them beside the copies. Stop that producer; "
                f"`mirrorless verify start '{flow}' {topic}` counts what stands there"
            )
        else:
            yield (
                f"{seen}what is copied stands behind them, and comes twice where they are another replicator's copies. "
                f"Delete {remote_topic(topic)} on the target, or begin behind what it has (`start`) and say `--beside`"
            )
