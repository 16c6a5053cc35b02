"""The reconcile of a failback: the existing job, started or found again, and followed to its end."""

from __future__ import annotations

from typing import Final

import msgspec

from mirrorless.failover.state import Failback
from mirrorless.failover.work import Done, FailoverWork, Unfinished

FOLLOW_SECONDS: Final = 2.0


def reconcile(work: FailoverWork) -> Done:
    """Copy back what only the target has. A run that died is followed by another, which continues where it was.

    Raises:
        Unfinished: the run failed, or left something that another run finishes.
        Retriable: the platform does not answer.
    """
    effects = work.effects
    run_id = _back(work).reconcile_run
    if not run_id:
        run_id = effects.jobs.new_id()
        _remember(work, run_id)
    found = effects.jobs.inspect(run_id)
    if found.state == "missing":
        excluded = [
            each["group"]
            for each in _groups_there(work)
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
    totals, report = found.report.get("totals", {}), found.report
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
        facts={"run": run_id, "place": found.place, "report": report},
        commands=(f"reconciled by {run_id}",),
    )


def _groups_there(work: FailoverWork) -> list[dict[str, str]]:
    """The groups as the failover has left them."""
    found = [each for each in work.document.steps if each.step == "groups"]
    return found[0].facts.get("groups", []) if found else []


def _back(work: FailoverWork) -> Failback:
    back = work.document.back
    assert back is not None  # noqa: S101 -- only a failback has this step
    return back


def _remember(work: FailoverWork, run_id: str) -> None:
    """Store the run, before it is started: it is found again wherever this command ends."""
    back = msgspec.structs.replace(_back(work), reconcile_run=run_id)
    work.save(msgspec.structs.replace(work.document, back=back))
