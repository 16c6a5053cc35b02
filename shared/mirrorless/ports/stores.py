"""The stores: chains, lane states, leases, the loss ledger, scheduled state, and the files of job runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Protocol

from mirrorless.chain.lane import FlowName, Lane
from mirrorless.chain.lane_state import NEW_LANE, Head, LaneState, Lease, Stop
from mirrorless.chain.losses import GapSummary, Loss
from mirrorless.chain.run import Link, Reset, Run
from mirrorless.clock import Deadline


class ChainReads(Protocol):
    """Reads of chains. Each raises Retriable when the store failed."""

    def heads(self, lanes: Iterable[Lane]) -> dict[Lane, Head]:
        """The head of each of the lanes.

        Raises:
            Retriable: when the store does not answer.
        """
        ...

    def at_or_before(self, lane: Lane, generation: int, upstream: int, *, head: Head | None = None) -> Link | None:
        """The link with the greatest position that is at most `upstream`. Args: head: as in `after`."""
        ...

    def after(self, lane: Lane, generation: int, upstream: int, *, limit: int, head: Head | None = None) -> list[Link]:
        """Up to `limit` links with a position greater than `upstream`, in order.

        Args:
            lane: whose.
            generation: theirs.
            upstream: an offset.
            limit: at most, but for a reset over a run in doubt, which comes on the page of that run.
            head: the lane's, where the caller has read it here already: what was added since is not looked for.
        """
        ...


PAGE: Final = 500
"""Links of one read of many."""


def links_after(chains: ChainReads, lane: Lane, generation: int, upstream: int, *, page: int = PAGE) -> Iterator[Link]:
    """All links of a generation with a position greater than `upstream`, in order, read page by page.

    Raises:
        Retriable: when the store does not answer.
    """
    at = upstream
    # A page may hold less than requested, where its links are large: only an empty one is the last.
    while links := chains.after(lane, generation, at, limit=page):
        yield from links
        at = links[-1].position


BLOCK: Final = 16
"""Partitions that are tried at a time where their number is not known."""


def lanes_with_a_chain(chains: ChainReads, flow: FlowName, topic: str) -> int:
    """One more than the highest partition with a chain. Blocks are read until a whole block has none.

    Raises:
        Retriable: when the store does not answer.
    """
    found = block = 0
    while True:
        lanes = [Lane(flow, topic, partition) for partition in range(block, block + BLOCK)]
        heads = chains.heads(lanes)
        replicated = [lane.partition for lane in lanes if heads[lane] != NEW_LANE]
        if not replicated:
            return found
        found, block = replicated[-1] + 1, block + BLOCK


def links_across(chains: ChainReads, lane: Lane, newest: int, *, since: int = 0, behind: int = -1) -> Iterator[Link]:
    """All links of a lane in order, generation by generation.

    Args:
        chains: the store.
        lane: whose.
        newest: the last generation.
        since: the first one.
        behind: the position in it behind which to begin.

    Raises:
        Retriable: when the store does not answer.
    """
    for generation in range(since, newest + 1):
        yield from links_after(chains, lane, generation, behind if generation == since else -1)


class Chains(ChainReads, Protocol):
    """The store of all lanes' chains. Reads are strongly consistent.

    What is throttled is tried again until the deadline, seconds left; without one, for as long as the store chooses.
    """

    def prepare(self, runs: Sequence[Run], deadline: Deadline | None = None) -> None:
        """Insert every run behind its lane's newest link, on condition that no other has taken that place.

        Runs of one attempt in neighbouring lanes share their fate: they are confirmed and withdrawn together.

        Raises:
            LostRace: when a rival's link stands there; some of `runs` may have been inserted.
            Retriable: when the store failed; which of `runs` were inserted is unknown.
        """
        ...

    def extend(self, runs: Sequence[Run]) -> None:
        """Add committed runs of one lane, each of which continues the one before it.

        Where there are many, it is done in portions. A portion is inserted as a whole or not at all, and in order.

        Raises:
            LostRace: when a rival's link stands there.
            Retriable: when the store failed; how many of `runs` were inserted is unknown.
        """
        ...

    def catch_up(self, lanes: Iterable[Lane]) -> Callable[[], None] | None:
        """The read of what other writers have added beside these lanes, so that a `prepare` need not fail first.

        Returns:
            None where no other writer was met lately. Otherwise what is best called while records are on their way;
            where the store does not answer, it does nothing.
        """
        ...

    def confirm(self, runs: Sequence[Run], deadline: Deadline | None = None) -> None:
        """Mark runs of ours as committed. Marking twice is harmless.

        Raises:
            ChainBroken: when a run is not there any more.
            Retriable: when the store failed; the runs stay in doubt.
        """
        ...

    def withdraw(self, runs: Sequence[Run], deadline: Deadline | None = None) -> None:
        """Withdraw those of `runs` that are there, prepared, and of the same attempt. Others' runs stay.

        Raises:
            Retriable: when the store failed.
        """
        ...

    def of_attempts(self, runs: Sequence[Run]) -> list[Run]:
        """These runs in doubt, and those of other lanes that share their fate and are still the newest of their lanes.

        Raises:
            Retriable: when the store does not answer.
        """
        ...

    def reset(self, link: Reset, over: Run | None = None) -> None:
        """Close a chain with a link.

        Args:
            link: at the lane's position.
            over: the run in doubt that is given up; it stays undecided, for it may share its fate with other lanes'.

        Raises:
            LostRace: when the lane has moved on, or another run of it is in doubt.
        """
        ...

    def renew(self, lanes: Iterable[Lane], *, settled_before: int, expires_at: int) -> int:
        """Let the ends of chains expire later: the head of an idle lane must outlive the map's retention.

        Args:
            lanes: those of a few topics; their neighbours are renewed with them.
            settled_before: ms since the epoch; what was settled later stays as it is.
            expires_at: seconds since the epoch.

        Returns:
            how many entries were renewed.

        Raises:
            Retriable: when the store failed.
        """
        ...


class LaneStates(Protocol):
    """Which lanes wait for the operator or for a job, and what the operator ordered."""

    def read(self, lanes: Iterable[Lane], deadline: Deadline | None = None) -> Mapping[Lane, LaneState]:
        """The state of each of the lanes; a lane never written is running, unless its flow is stopped.

        Args:
            lanes: any number.
            deadline: seconds left, to read again what is throttled; without one, as the store chooses.

        Raises:
            Retriable: when the store does not answer.
        """
        ...

    def stop(self, lane: Lane, stop: Stop) -> None:
        """Note that a lane waits for the operator."""
        ...

    def wait(self, lane: Lane, upstream_offset: int | None) -> None:
        """Note from which upstream offset on a batch waits for a job, which must come that far; None for no longer."""
        ...

    def drop(self, lane: Lane, lease: Lease) -> None:
        """Drop a lease that has ended, unless it was renewed or another job has the lane."""
        ...

    def begin(self, lane: Lane, generation: int) -> None:
        """Note that a lane has a run in this generation. The note does not expire."""
        ...


class FlowStops(Protocol):
    """Stops of whole flows: one item stops all lanes of a flow. Every method raises Retriable without an answer."""

    def flow_stop(self, flow: FlowName) -> Stop | None:
        """The stop of a flow; None where there is none."""
        ...

    def stop_flow(self, flow: FlowName, stop: Stop) -> None:
        """Stop all lanes of a flow, present and future; a stop that is there is replaced."""
        ...

    def resume_flow(self, flow: FlowName) -> None:
        """End that stop. Lanes with a stop of their own stay stopped."""
        ...

    def store_now(self) -> int | None:
        """The store's own time, ms since the epoch, a second late at most; None where no answer has told it."""
        ...


class Leases(Protocol):
    """Who has a lane to himself. Every method raises Retriable when the store does not answer."""

    def take(self, lane: Lane, lease: Lease, *, now: int) -> LaneState:
        """Take a lane, or keep it for longer. Forgets who waited when the holder changes.

        Args:
            lane: whose lease.
            lease: the holder, and until when.
            now: ms since the epoch.

        Returns:
            the lane's state with the lease.

        Raises:
            LeaseHeld: another job has it, and its lease has not ended.
        """
        ...

    def keep(self, lane: Lane, lease: Lease) -> bool:
        """Keep a lane for longer, if the lease is the holder's still: one that was ended is not taken again.

        Returns:
            whether it is.
        """
        ...

    def let_go(self, lane: Lane, holder: str, *, position: int | None = None) -> bool:
        """End a lease of `holder`; another holder's stays. Who waited is kept: see `waits_for_history`.

        Args:
            lane: whose lease.
            holder: the job run's id.
            position: where the lane stands; where a batch waits further on, the lease stays. None ends it anyhow.

        Returns:
            whether the holder has the lane no more. Where not, it must come further: see `LaneState.waiting`.
        """
        ...


class LossLedger(Protocol):
    """The store of losses and summaries. Every method raises Retriable when the store does not answer."""

    def note(self, loss: Loss) -> None:
        """Keep a loss; noting one twice keeps one."""
        ...

    def read(self, lane: Lane) -> list[Loss]:
        """Every loss of a lane, by upstream offset."""
        ...

    def of_lanes(self, lanes: Iterable[Lane]) -> dict[Lane, list[Loss]]:
        """Every loss of each of the lanes, by upstream offset."""
        ...

    def summary(self, lane: Lane, generation: int) -> GapSummary:
        """What was explained of one generation; an empty summary where nothing was. Strongly consistent."""
        ...

    def summaries(self, lane: Lane) -> list[GapSummary]:
        """Every summary of a lane, by generation."""
        ...

    def summarise(self, summary: GapSummary, *, known: GapSummary) -> None:
        """Replace a summary.

        Raises:
            LostRace: another one than `known` stands there, so that some gap would be counted twice.
        """
        ...


class StateStore(Protocol):
    """A store of documents of any size. Reads are strongly consistent and find each document whole.

    Every method raises Retriable when the store does not answer.
    """

    def read(self, flow: FlowName, prefix: str) -> dict[str, bytes]:
        """Every document of a flow whose key begins with `prefix`, by key, in the order of the keys."""
        ...

    def write(self, flow: FlowName, documents: Mapping[str, bytes], *, epoch: int | None = None) -> None:
        """Write documents by key, each whole; what stood there is replaced.

        Args:
            flow: whose.
            documents: by key.
            epoch: of the lease under which they are written; None for documents that no lease guards.

        Raises:
            LeaseLost: one of them was written in a later epoch, and stays; others may have been written.
        """
        ...

    def delete(self, flow: FlowName, key: str, *, epoch: int | None = None) -> None:
        """Delete a document; deleting what is not there is harmless.

        Raises:
            LeaseLost: it was written in a later epoch than that of the caller's lease, and stays.
        """
        ...

    def claim(
        self, flow: FlowName, key: str, *, holder: str, now: int, until: int, longest: int | None = None
    ) -> int | None:
        """Take or renew a lease.

        Args:
            flow: whose.
            key: of the lease.
            holder: unique to the caller.
            now: ms since the epoch; a lease whose `until` has passed is free.
            until: ms since the epoch.
            longest: ms; a lease that ends later than so long from `now` is free too, because the clock of its holder
                is ahead. None: however late it ends, it stands.

        Returns:
            its epoch, which grows with every claim, whoever makes it; None while another holder has it.
        """
        ...

    def release(self, flow: FlowName, key: str, *, holder: str) -> None:
        """End the holder's lease; another holder's stays."""
        ...


class JobFiles(Protocol):
    """The folder of one job run. Every method raises Retriable when the store does not answer."""

    @property
    def place(self) -> str:
        """Its URI or path, to show and to open again by."""
        ...

    def write(self, name: str, content: bytes) -> None:
        """Write a file whole: a reader sees the old one or the new one."""
        ...

    def read(self, name: str) -> bytes | None:
        """A file's content; None when it is not there."""
        ...

    def names(self, under: str = "") -> list[str]:
        """The files whose names begin with `under`, in order."""
        ...
