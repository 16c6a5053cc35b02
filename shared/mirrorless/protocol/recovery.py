"""Recovery of runs in doubt: fence their writers, then read the target.

A run is prepared before its transaction commits, and names that transaction. A crash between the two leaves it
in doubt. Fencing the transactional id settles the transaction one way or the other and shuts out a zombie; then
the target itself is the witness: the run's last record is visible at its downstream offset, or was aborted there.

A crash leaves all lanes of an event in doubt: each writer is fenced once, all lanes are looked at together, and what
the witness of one lane shows holds for all lanes of its transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import Stop
from mirrorless.chain.run import Run
from mirrorless.clock import Deadline
from mirrorless.errors import ChainBroken, InDoubt
from mirrorless.ports.kafka import LookResult, Target, TopicPartition
from mirrorless.ports.stores import Chains
from mirrorless.protocol.digest import fingerprint
from mirrorless.records.record import Record


def settle_doubts(
    runs: Sequence[Run], remote_topic: Callable[[str], str], *, chains: Chains, target: Target, deadline: Deadline
) -> dict[Lane, ChainBroken]:
    """Confirm or withdraw prepared runs, one per lane, and those that share their transactions in a journal.

    Safe to do by several at once.

    Returns:
        the lanes whose run cannot be settled: the target has lost the witnesses of all lanes of the attempt, or
        strangers' records stand there.

    Raises:
        InDoubt: when an open transaction still hides an answer. The other runs are settled.
        Retriable: when the target or the chain does not answer.
    """
    runs = chains.of_attempts(runs)  # a lane that is not asked for may have the only witness that is left
    places = {run.lane: (remote_topic(run.lane.topic), run.lane.partition) for run in runs}
    for writer in dict.fromkeys(run.writer for run in runs if run.last_downstream is not None):
        target.fence(writer, deadline)
    offsets = {places[run.lane]: run.last_downstream for run in runs if run.last_downstream is not None}
    seen = target.look(offsets, deadline) if offsets else {}
    found = {lane: seen.get(place) for lane, place in places.items()}
    by_attempt: dict[str, list[Run]] = {}
    for run in runs:
        by_attempt.setdefault(run.attempt, []).append(run)
    broken: dict[Lane, ChainBroken] = {}
    committed, aborted, hidden = [], [], []
    for attempt in by_attempt.values():
        # One attempt is one transaction: what the witness of one lane shows holds for all of them.
        witnessed = [run for run in attempt if found[run.lane] is not None]
        if not witnessed or any(_is_witness(run, found[run.lane]) for run in witnessed):
            committed += attempt
        elif any(found[run.lane] == "absent" for run in witnessed):
            aborted += attempt
        elif any(found[run.lane] == "unsettled" for run in witnessed):
            hidden += witnessed
        else:
            broken |= {run.lane: _broken(run, found[run.lane], places[run.lane]) for run in attempt}
    broken |= _confirm(committed, chains, deadline)
    if aborted:
        chains.withdraw(aborted, deadline)
    if hidden:
        first = hidden[0]
        raise InDoubt(
            f"an open transaction hides {_witness(first, places[first.lane])}; it ends by itself after its timeout",
            where=first.lane.at(first.position),
        )
    return broken


def settle_doubt(
    run: Run, remote_topic: Callable[[str], str], *, chains: Chains, target: Target, deadline: Deadline
) -> None:
    """Confirm or withdraw one prepared run.

    Raises:
        InDoubt, Retriable: see `settle_doubts`.
        ChainBroken: when the target has lost the witness, or a stranger's record stands there.
    """
    broken = settle_doubts([run], remote_topic, chains=chains, target=target, deadline=deadline)
    if run.lane in broken:
        raise broken[run.lane]


def unsettled_stop(run: Run, why: ChainBroken, *, now: int) -> Stop:
    """The stop of a lane whose run cannot be settled. Args: now: ms since the epoch."""
    untrue = 0 if why.target_lost else None
    return Stop(reason="broken", upstream_offset=run.position, detail=str(why), at=now, untrue_from=untrue)


def _confirm(runs: Sequence[Run], chains: Chains, deadline: Deadline) -> dict[Lane, ChainBroken]:
    """Confirm runs together; where one of them is gone, each by itself, for only those of its attempt are broken."""
    if not runs:
        return {}
    try:
        chains.confirm(runs, deadline)
    except ChainBroken as exc:
        if len(runs) == 1:
            return {runs[0].lane: exc}
        return {lane: each for run in runs for lane, each in _confirm([run], chains, deadline).items()}
    return {}


def _is_witness(run: Run, found: Record | LookResult | None) -> bool:
    return isinstance(found, Record) and fingerprint(found) == run.fingerprint


def _broken(run: Run, found: Record | LookResult | None, remote: TopicPartition) -> ChainBroken:
    place, witness = run.lane.at(run.position), _witness(run, remote)
    if found is None:
        return ChainBroken(
            "a run in doubt has no record of its own, and the target has lost the witnesses of the lanes beside it",
            where=place,
            hint="reset the lane to its position",
        )
    if found == "ended":
        # The record was acknowledged before its run was prepared, and a log's end does not move back.
        return ChainBroken(
            f"a run is in doubt and the target's log ends before its witness {witness}",
            where=place,
            hint="the remote topic was deleted or re-created, or lost its end: compare it with the map, then reset the "
            "lane to the source's offset at which the target should go on",
            target_lost=True,
        )
    if found == "expired":
        return ChainBroken(
            f"a run is in doubt and the target no longer holds its witness {witness}",
            where=place,
            hint="reset the lane to the source's offset at which the target should go on",
        )
    return ChainBroken(
        f"another record than this run's stands at {witness}",
        where=place,
        hint="another producer writes to the remote topic, or it was re-created: find it, then reset the lane",
        target_lost=True,
    )


def _witness(run: Run, remote: TopicPartition) -> str:
    return f"{remote[0]}-{remote[1]} @ {run.last_downstream}"
