"""Recovery of a run in doubt: fence its writer, then read the target.

A run is prepared before its transaction commits, and names that transaction. A crash between the two leaves it
in doubt. Fencing the transactional id settles the transaction one way or the other and shuts out a zombie; then
the target itself is the witness: the run's last record is visible at its downstream offset, or was aborted there.
"""

from __future__ import annotations

from mirrorless.errors import ChainBroken, InDoubt
from mirrorless.ports.kafka import Deadline, Target
from mirrorless.ports.stores import Chains
from mirrorless.protocol.digest import fingerprint
from mirrorless.record import Record
from mirrorless.run import Run


def settle_doubt(run: Run, remote_topic: str, *, chains: Chains, target: Target, deadline: Deadline) -> bool:
    """Confirm or withdraw a prepared run. Safe to do by several at once.

    Returns:
        whether the run was committed.

    Raises:
        InDoubt: when an open transaction still hides the answer.
        ChainBroken: when the target has lost the witness, or a stranger's record stands there.
        Retriable: when the target or the chain does not answer.
    """
    place = run.lane.at(run.position)
    last = run.last_downstream
    if last is None:
        # Nothing was written, so nothing can be half done.
        chains.confirm([run], deadline)
        return True

    witness = f"{remote_topic}-{run.lane.partition} @ {last}"
    target.fence(run.writer, deadline)
    seen = target.look(remote_topic, run.lane.partition, last, deadline)
    if seen == "unsettled":
        raise InDoubt(
            f"an open transaction hides {witness}; it ends by itself after its timeout",
            where=place,
        )
    if seen == "ended":
        # The record was acknowledged before its run was prepared, and a log's end does not move back.
        raise ChainBroken(
            f"a run is in doubt and the target's log ends before its witness {witness}",
            where=place,
            hint="the remote topic was deleted or re-created, or lost its end: compare it with the map, then reset the "
            "lane to the source's offset at which the target should go on",
        )
    if seen == "expired":
        raise ChainBroken(
            f"a run is in doubt and the target no longer holds its witness {witness}",
            where=place,
            hint="reset the lane to the source's offset at which the target should go on",
        )
    if isinstance(seen, Record) and fingerprint(seen) == run.fingerprint:
        chains.confirm([run], deadline)
        return True
    if isinstance(seen, Record):
        raise ChainBroken(
            f"another record than this run's stands at {witness}",
            where=place,
            hint="another producer writes to the remote topic, or it was re-created: find it, then reset the lane",
        )
    chains.withdraw([run], deadline)
    return False
