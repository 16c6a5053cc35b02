"""Steps of a failover and of a failback that stand alone: the proof, a drill's groups, rights, and the reconcile.

The proof is of each lane's newest run by its digest: what was replicated last stands on the target, byte for byte. The
whole history is what `mirrorless verify` proves; it takes minutes, and nobody waits for it in a failover.

The groups of a drill have names of the drill's own, with the offsets at which the real ones would go on. Nothing of an
application is touched: its groups, members and topics stay as they are, on both clusters.

The rights that applications need on the target are created at a failover and revoked at the failback. The reconcile of
a failback is the existing job, started or found again, and followed to its end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from mirrorless.chain.run import Run
from mirrorless.clock import Deadline
from mirrorless.errors import ConfigurationError, Retriable
from mirrorless.failover.groups import checkpoints_of
from mirrorless.failover.state import Failback
from mirrorless.failover.work import Done, FailoverWork, RecordRanges, Unfinished
from mirrorless.flow.naming import OWN_GROUPS
from mirrorless.ports.kafka import OffsetAndMetadata, TopicPartition
from mirrorless.protocol.digest import digest
from mirrorless.reports.format import numbered
from mirrorless.topics.acl_sync import AclFailover, AclOutcome, Disabled, leased, planned_revocation, stored
from mirrorless.topics.acls import why_withheld
from mirrorless.verify.run_ranges import RunRange, of_batches
from mirrorless.verify.walk import Judged, judge, judge_batches

READ_SECONDS: Final = 60.0
"""For the runs that are read at a time."""

AT_ONCE_BYTES: Final = 48_000_000
"""Of runs that are read at a time: they are in memory."""


def prove(work: FailoverWork) -> Done:
    """Read the newest run of each lane, and compare. A digest that does not hold is named, and stops nothing.

    Raises:
        Retriable: a cluster or the store does not answer.
    """
    effects = work.effects
    heads = effects.chains.heads(work.lanes())
    runs = {
        (effects.remote_topic(lane.topic), lane.partition): head.run
        for lane, head in heads.items()
        if head.run is not None and head.run.spans and not head.in_doubt
    }
    proved, wrong = 0, dict[str, str]()
    for some in _portions(runs):
        judged = dict(judged_runs(effects.target.records, some, work.within(READ_SECONDS)))
        as_on_source = _as_on_source(effects.source.records, judged, work.within(READ_SECONDS))
        for place, found in sorted(judged.items()):
            trouble = "" if place in as_on_source else _trouble(found)
            proved += not trouble
            if trouble:
                wrong[str(some[place].lane)] = trouble
        work.keep()
    said = f"{proved:,} digests hold" if proved or wrong else "no lane has a record"
    return Done(
        said=said + (f", {len(wrong):,} do not" if wrong else ""),
        facts={"proved": proved, "wrong": wrong, "empty": len(heads) - len(runs)},
    )


def judged_runs(
    target: RecordRanges, runs: Mapping[TopicPartition, Run], deadline: Deadline
) -> Iterator[tuple[TopicPartition, Judged]]:
    """Each run, judged by what its digest is of."""
    run_ranges = {place: RunRange.of_copies(run) for place, run in runs.items()}
    ranges = {place: (run_range.first, run_range.next) for place, run_range in run_ranges.items()}
    by_batches = {place: ranges[place] for place, run in runs.items() if of_batches(run)}
    by_records = {place: ranges[place] for place in ranges.keys() - by_batches.keys()}
    for place, records in target.ranges(by_records, deadline):
        yield place, judge(run_ranges[place], records)
    for place, batches in target.batches(by_batches, deadline):
        yield place, judge_batches(run_ranges[place], batches)


def _as_on_source(
    source: RecordRanges, judged: Mapping[TopicPartition, Judged], deadline: Deadline
) -> set[TopicPartition]:
    """Those runs of batches whose records are the source's, although their batches are not those that were produced.

    What a failback joined has the digest of the batches that came back: records that were packed anew for it lie in
    other batches here.
    """
    runs = {
        (run.lane.topic, run.lane.partition): (place, run)
        for place, found in judged.items()
        if found.state == "wrong" and (run := found.run_range.run) is not None and of_batches(run)
    }
    ranges = {there: (run.spans[0].upstream, run.known_to) for there, (_, run) in runs.items()}
    same = set[TopicPartition]()
    for there, records in source.ranges(ranges, deadline):
        place, run = runs[there]
        originals = judge(RunRange.of_originals(run), records).records
        if digest(originals) == digest(judged[place].records):
            same.add(place)
    return same


def _trouble(found: Judged) -> str:
    """Why a run is not proved; empty where it is."""
    if found.absent:
        are = "is" if len(found.absent) == 1 else "are"
        return (
            f"{numbered(len(found.absent), 'record')} of its newest run {are} not there: retention, compaction, or lost"
        )
    return "" if found.state == "proved" else "the digest of its newest run does not hold"


def _portions(runs: Mapping[TopicPartition, Run]) -> Iterator[dict[TopicPartition, Run]]:
    portion, size = dict[TopicPartition, Run](), 0
    for place, run in runs.items():
        if portion and size + run.bytes > AT_ONCE_BYTES:
            yield portion
            portion, size = {}, 0
        portion[place] = run
        size += run.bytes
    if portion:
        yield portion


SHADOW: Final = f"{OWN_GROUPS}drill."
"""Prefix of the drill's groups. Groups of the replication are never followed."""


def commit_shadows(work: FailoverWork) -> Done:
    """Commit for the shadow of each group, read it back, and read the first record at each of its offsets.

    Raises:
        Retriable: the target or a store does not answer.
    """
    effects, began = work.effects, work.effects.clock()
    offsets: dict[str, dict[TopicPartition, OffsetAndMetadata]] = {}
    left: dict[str, str] = {}
    for group in checkpoints_of(work):
        known = {
            (effects.remote_topic(lane.topic), lane.partition): OffsetAndMetadata(offset.downstream)
            for lane, offset in group.lanes(work.flow)
            if offset.usable and offset.downstream is not None and lane.topic in work.topics
        }
        if known:
            offsets[group.group] = known
        else:
            left[group.group] = group.readiness
    for name, known in offsets.items():
        effects.shadows.commit(shadow(work, name), known, work.within())
        work.keep()
    found = effects.shadows.committed([shadow(work, name) for name in offsets], work.within())
    differing = [name for name, known in offsets.items() if dict(found.get(shadow(work, name), {})) != known]
    first = _readable(work, {(place, at.offset) for known in offsets.values() for place, at in known.items()})
    return Done(
        said=f"{len(offsets) - len(differing):,} of {len(offsets) + len(left):,} groups would go on",
        facts={
            "groups": sorted(offsets),
            "left": left,
            "differing": differing,
            "read": first,
            "recovery_seconds": (effects.clock() - began) / 1000,
        },
        commands=tuple(f"committed for {shadow(work, name)} on {work.flow.target}" for name in offsets),
    )


def _readable(work: FailoverWork, starts: set[tuple[TopicPartition, int]]) -> int:
    """How many partitions have shown the first record that a group would read. Behind the end there is none."""
    effects = work.effects
    lowest: dict[TopicPartition, int] = {}
    for place, offset in starts:
        lowest[place] = min(offset, lowest.get(place, offset))
    ends = effects.target.ends(list(lowest), work.within())
    wanted = {
        place: (offset, offset + 1) for place, offset in lowest.items() if place in ends and offset < ends[place][1]
    }
    return sum(1 for _ in effects.target.records.ranges(wanted, work.within(READ_SECONDS))) if wanted else 0


def shadow(work: FailoverWork, group: str) -> str:
    """The drill's name for a group."""
    return _prefix(work) + group


def clean_up(work: FailoverWork) -> Done:
    """Delete the groups of all drills.

    Raises:
        Retriable: the target does not answer, or refuses.
    """
    shadows = [name for name in work.effects.shadows.names(work.within()) if name.startswith(_prefix(work))]
    if shadows:
        work.effects.shadows.delete(shadows, work.within())
    return Done(
        said=f"{len(shadows):,} groups of the drill were deleted",
        commands=tuple(f"deleted group {name} on {work.flow.target}" for name in shadows),
    )


def _prefix(work: FailoverWork) -> str:
    return f"{SHADOW}{work.flow.slug}."


LEASE_SECONDS: Final = 120.0
"""For which the scheduled function may keep its lease."""


def grant(work: FailoverWork) -> Done:
    """Create what was staged.

    Raises:
        Unfinished: the target refused a part of it.
        Retriable: the target or the store does not answer.
    """
    effects, flow = work.effects, work.flow
    failover = AclFailover(
        flow=flow,
        target=effects.target.acls,
        documents=effects.documents,
        groups=[each.group for each in checkpoints_of(work)],
    )
    try:
        missing = failover.plan(work.within())
    except ConfigurationError as exc:
        if effects.target.acls.read(work.within()) is None:
            return _without_authorizer(work)
        return Done(said=f"no ACL was staged: {exc.what}", facts={"left": [str(exc)]})
    if isinstance(missing, Disabled):
        return _without_authorizer(work)
    outcome = failover.carry_out(missing, work.within()) if missing else AclOutcome()
    work.check_acls(flow.target, outcome.failed)
    known, _ = stored(effects.documents, flow)
    left = [f"{acl}: {why_withheld(acl)}" for acl in (known.withheld if known is not None else ())]
    return Done(
        said=f"created on {flow.target}: {numbered(len(missing), 'ACL')}"
        + (f", {len(left)} are for you" if left else ""),
        facts={"created": len(missing), "left": left},
        commands=tuple(f"created on {flow.target}: {acl}" for acl in sorted(missing)),
    )


def revoke(work: FailoverWork) -> Done:
    """Delete what failovers have created, and nothing else.

    Raises: as `grant`.
    """
    effects, flow = work.effects, work.flow
    if effects.target.acls.read(work.within()) is None:
        return _without_authorizer(work)
    if not stored(effects.documents, flow)[1].created:  # nor is there anything to keep the schedule from meanwhile
        return Done(said=f"deleted on {flow.target}: no ACL; failovers have created none")
    for late in work.tries(LEASE_SECONDS):
        try:
            with leased(effects.acl_sync, holder=f"failover/{effects.new_id()}", clock=effects.clock) as sync:
                plan = planned_revocation(sync, effects.acls_of_others(), work.within())
                if isinstance(plan, Disabled):
                    return _without_authorizer(work)
                found = plan.revocation
                outcome = plan.failover.revoke(found, work.within())
            break
        except Retriable as exc:
            if late:
                raise
            work.wait_for(f"the ACLs of {flow.target}: {exc.what}")
    work.check_acls(flow.target, outcome.failed)
    kept = len(found.due) + len(found.shared)
    return Done(
        said=f"deleted on {flow.target}: {numbered(len(found.delete), 'ACL')}"
        + (f", {kept} are due there now" if kept else ""),
        facts={"deleted": len(found.delete), "kept": kept},
        commands=tuple(f"deleted on {flow.target}: {acl}" for acl in sorted(found.delete)),
    )


def _without_authorizer(work: FailoverWork) -> Done:
    return Done(said=f"{work.flow.target} has no authorizer, so nothing is to be done")


FOLLOW_SECONDS: Final = 2.0

ADDED: Final = (
    *("copied_back", "copied_back_bytes", "copied_back_passed_bytes", "unmapped", "conflicts"),
    *("orphans", "orphan_records", "orphan_bytes", "orphan_keys", "orphans_bytes", "orphans_moved", "orphans_withheld"),
)
"""What two runs have done in one lane is the sum of the two."""

NEW: Final = {"new": "copied_back", "new_bytes": "copied_back_bytes"}


def reconcile(work: FailoverWork) -> Done:
    """Copy back what only the target has. A run that died is followed by another, which continues where it was.

    Raises:
        Unfinished: the run failed, or left something that another run finishes.
        Retriable: the platform does not answer.
    """
    effects = work.effects
    run_id = _back(work).reconcile_run
    if not run_id or not _back(work).reconcile_ends:
        run_id = effects.jobs.new_id()
        _remember(
            work,
            run_id,
            runs=(*_back(work).runs, run_id),
            reconcile_ends=work.document.facts("standstill")["ends"],
            reconcile_positions={str(lane): head.position for lane, head in effects.chains.heads(work.lanes()).items()},
        )
    found = effects.jobs.inspect(run_id)
    if found.state == "missing":
        _await_leases(work, run_id)
        excluded = [
            each["group"]
            for each in work.document.facts("groups").get("groups", ())
            if each["fate"] == "left" and each["readiness"] == "independent"
        ]
        effects.jobs.start(run_id, topics=sorted(work.topics), groups_exclude=excluded)
        work.say(f"reconcile: {run_id} was started")
    while (found := effects.jobs.inspect(run_id)).state in {"running", "missing"}:
        work.wait_for(f"{run_id}: {found.phase or 'starting'}")
        work.pause(FOLLOW_SECONDS)
    if found.state == "failed":
        _remember(work, "")
        raise Unfinished(
            f"{run_id} failed: {found.error}", where=str(work.flow), hint="run the same command again: it continues"
        )
    report = with_earlier(work.document.facts("reconcile").get("report", {}), found.report)
    totals = report.get("totals", {})
    unfinished = [
        f"{each['topic']}-{each['partition']}: {each.get('error') or each.get('waits')}"
        for each in report.get("lanes", ())
        if each.get("error") or each.get("waits")
    ]
    ahead = [each["group"] for each in report.get("groups", ()) if each["readiness"] == "ahead_of_replication"]
    if unfinished or ahead:
        _remember(work, "")
        what = unfinished[0] if unfinished else f"group {ahead[0]} has read what was written since the run began"
        raise Unfinished(
            f"{run_id} has left work: {what}",
            where=str(work.flow),
            hint=f"see {found.place}/report.html; stop the producers of {work.flow.target}; run the same command again",
        )
    return Done(
        said=f"{totals.get('copied_back', 0):,} records were copied back, {totals.get('copied_back_ratio', 0):.2%} of "
        f"the target's bytes; {totals.get('orphans', 0):,} records were orphaned",
        facts={
            "run": run_id,
            "place": found.place,
            "report": report,
        },
        commands=(f"reconciled by {run_id}",),
    )


def with_earlier(earlier: Mapping[str, Any], report: Mapping[str, Any]) -> dict[str, Any]:
    """A run's report with what earlier runs of the same failback have done in its lanes. Pure."""
    if not earlier:
        return dict(report)
    before = {(each["topic"], each["partition"]): each for each in earlier.get("lanes", ())}
    lanes = []
    for each in report.get("lanes", ()):
        known = before.get((each["topic"], each["partition"]), {})
        lane = _sums(each, known)
        seen = [at for one in (each, known) for at in (one.get("oldest_orphan", -1), one.get("newest_orphan", -1))]
        if times := [at for at in seen if at >= 0]:
            lane |= {"oldest_orphan": min(times), "newest_orphan": max(times)}
        lanes.append(lane)
    totals = _sums(report.get("totals", {}), earlier.get("totals", {}))
    if totals.get("bytes"):
        totals["copied_back_ratio"] = round(totals.get("copied_back_bytes", 0) / totals["bytes"], 6)
    troubles = dict.fromkeys((*earlier.get("troubles", ()), *report.get("troubles", ())))
    return dict(report) | {"lanes": lanes, "totals": totals, "troubles": list(troubles)}


def _sums(each: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    # What an earlier run has found and not copied is found again.
    new = {new: each[new] + known.get(copied, 0) for new, copied in NEW.items() if new in each}
    return dict(each) | new | {name: each.get(name, 0) + known[name] for name in ADDED if name in known}


def _await_leases(work: FailoverWork, run_id: str) -> None:
    """Wait for the leases of earlier runs of this failback: one that was killed has let go of nothing, and they end."""
    others = {*_back(work).runs} - {run_id}
    while True:
        states, now = work.effects.states.read(work.lanes()), work.effects.clock()
        held = {each.lease.holder for each in states.values() if each.lease is not None and now < each.lease.until}
        if not held & others:
            return
        work.wait_for(f"the lease of {min(held & others)} to end, which is dead")
        work.pause(FOLLOW_SECONDS)


def _back(work: FailoverWork) -> Failback:
    back = work.document.back
    assert back is not None  # noqa: S101 -- only a failback has this step
    return back


def _remember(work: FailoverWork, run_id: str, **before: Any) -> None:
    """Store the run, before it is started: it is found again wherever this command ends."""
    work.save(work.document.changed(reconcile_run=run_id, **before))
