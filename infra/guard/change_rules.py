"""Rules on stateful resources, mappings and positions: two sets of templates in, findings out, without any call of AWS.

Refused is what loses data, makes a resource anew, or fails half-way. Noted is what an operator should read before.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from infra.guard.flow_rules import flow_findings
from infra.guard.templates import (
    APPLICATION,
    BUCKET,
    DATA,
    FOUND,
    MAPPING,
    TABLE,
    Resource,
    Templates,
    changeable_at_times,
    unchangeable,
    value_at,
    watched,
)
from infra.guard.verdict import CHANGEABLE, ApplicationState, ChangeFinding, noted, refused

StateOf = Callable[[Resource], ApplicationState | None]
"""The state of an application as EMR Serverless has it; None where that is not known, or there is none."""


def findings(old: Templates, new: Templates, state_of: StateOf = lambda _: None) -> list[ChangeFinding]:
    """Everything that changes, what is refused first."""
    before, after = watched(old), watched(new)
    change = _Change(before, after, {each.identity: each for each in after.values() if each.identity}, state_of)
    left = [_left(stack, before) for stack in old if stack not in new]
    found = [*left, *change.findings(new), *flow_findings(old, new, before, after)]
    return sorted(found, key=lambda finding: (not finding.refused, finding.stack, finding.id))


@dataclass(frozen=True, slots=True)
class _Change:
    before: Mapping[tuple[str, str], Resource]
    after: Mapping[tuple[str, str], Resource]
    named: Mapping[str, Resource]
    state_of: StateOf

    def findings(self, new: Templates) -> Iterator[ChangeFinding]:
        for key, was in self.before.items():
            now = self.after.get(key)
            moved = self.named.get(was.identity)
            if was.stack not in new:  # it goes as a whole, before anything else is made
                if was.type == TABLE and moved is not None:
                    yield _emptied(was, moved)
                continue
            if now is not None and now.type == was.type:
                yield from _kept(was, now, self.state_of)
            elif moved is not None:
                yield _moved(was, moved)
            else:
                yield from _gone(was)


def _kept(was: Resource, now: Resource, state_of: StateOf) -> Iterator[ChangeFinding]:
    """The same logical id: what of it changes."""
    fixed = [path for path in unchangeable(was.type) if _differs(was, now, path)]
    at_times = [path for path in changeable_at_times(was.type) if _differs(was, now, path)]
    if fixed:
        what = ", ".join(f"{path} {_shown(was, path)} -> {_shown(now, path)}" for path in fixed)
        yield refused(was, what, _REPLACED[was.type], _INSTEAD[was.type])
    elif at_times and was.type in DATA:
        yield refused(was, ", ".join(at_times), _REPLACED[was.type], _INSTEAD[was.type])
    elif at_times:
        yield _stopped_before(was, ", ".join(at_times), state_of(was))
    yield from _weakened(was, now)
    before, after = _keys(was), _keys(now)
    if any(before[place] != after[place] for place in before.keys() & after.keys()):
        yield noted(was, "is encrypted with another key from now on", _OTHER_KEY[was.type], _OLD_KEY)
    rest = sorted(
        name
        for name in was.properties.keys() | now.properties.keys()
        if was.properties.get(name) != now.properties.get(name)
        and not any(path.split("/")[0] == name for path in (*fixed, *at_times))
    )
    if rest:
        yield noted(was, f"changed in place: {', '.join(rest)}")


_OTHER_KEY: Final[Mapping[str, str]] = {
    TABLE: "DynamoDB encrypts it anew; what it can be restored from, 35 days back, stays under the old key",
    BUCKET: "what is in it stays under the old key, on which jobs have no right any more",
}

_OLD_KEY: Final = "keep the old key as long as such data is to be read; copy a bucket's objects onto themselves"


def _keys(resource: Resource) -> Mapping[str, Any]:
    """What a table in each of its regions, or a bucket, is encrypted by."""
    if resource.type == TABLE:
        return {each: value_at(body, "SSESpecification/KMSMasterKeyId") for each, body in _replicas(resource).items()}
    return {"": resource.properties.get("BucketEncryption")} if resource.type == BUCKET else {}


def _stopped_before(was: Resource, what: str, now: ApplicationState | None) -> ChangeFinding:
    """EMR Serverless changes an application only while it stands still."""
    if now is None or now.state in CHANGEABLE:
        return noted(was, what, "this can be changed only while it is stopped", "let its jobs end, and stop it")
    why = f"it is {now.state}, and is changed only while it is stopped: the deployment would be rolled back"
    stop = f"aws emr-serverless stop-application --region {now.region} --application-id {now.id}"
    return refused(was, what, why, f"let its jobs end, or cancel them; then `{stop}`, and deploy when it is STOPPED")


_REPLACED: Final[Mapping[str, str]] = {
    TABLE: "it is made anew and empty: positions and the offset map stay behind in the old one",
    BUCKET: "another bucket is made: reports and archives stay behind in the old one",
    MAPPING: "Lambda changes this in no mapping. CloudFormation does nothing, or makes a second one before the first "
    "goes: with the same source and group that fails (409), with another source old positions meet other records",
    APPLICATION: "another application is made, and jobs that run on the old one end",
    FOUND: "CloudFormation takes it for another resource, and its removal deletes every mapping of a found topic",
}

_INSTEAD: Final[Mapping[str, str]] = {
    TABLE: "keep the name and the keys; to move it, restore a backup under the new name and replay from it",
    BUCKET: "keep the name; copy what is in it before you give it another",
    MAPPING: "take the topic out, deploy, put it back with the new value, deploy: its group goes on where it was; "
    "or, for other addresses of the same brokers, name it in `trigger.overrides`: refresh_topics makes it anew",
    APPLICATION: "wait until no job runs, and accept it",
    FOUND: "keep its id and its function; or accept that found topics stand still for some minutes",
}


def _weakened(was: Resource, now: Resource) -> Iterator[ChangeFinding]:
    """Protection that was there and is not any more."""
    for policy in ("DeletionPolicy", "UpdateReplacePolicy"):
        if was.body.get(policy) == "Retain" != now.body.get(policy):
            yield _unprotected(was, f"{policy} Retain -> {now.body.get(policy, 'Delete')}")
    for name, protected, still in _switches(was, now):
        if protected and not still:
            yield _unprotected(was, name)
    if was.type == TABLE and (gone := _replicas(was).keys() - _replicas(now).keys()):
        yield refused(
            was,
            f"its copy in {', '.join(sorted(gone))} is removed",
            "a protected copy refuses to go, and the deployment fails; without protection, the copy is lost",
            "keep `offset.map.replicas.enabled`; or switch off the copy's protection by hand, and accept it",
        )


def _switches(was: Resource, now: Resource) -> Iterator[tuple[str, bool, bool]]:
    """What may be switched off: what that is called, whether it was on, whether it still is."""
    if was.type == BUCKET:
        yield "versioning is switched off", _versioned(was), _versioned(now)
    places = [("", was.properties, now.properties)]
    if was.type == TABLE:
        new = _replicas(now)
        places = [(f" in {region}", old, new[region]) for region, old in _replicas(was).items() if region in new]
    for where, old, kept in places:
        yield f"deletion protection is switched off{where}", _protected(old), _protected(kept)
        yield f"point-in-time recovery is switched off{where}", _recoverable(old), _recoverable(kept)


def _versioned(bucket: Resource) -> bool:
    return bool(value_at(bucket.properties, "VersioningConfiguration/Status") == "Enabled")


def _protected(table: Mapping[str, Any]) -> bool:
    return table.get("DeletionProtectionEnabled") is True


def _recoverable(table: Mapping[str, Any]) -> bool:
    return value_at(table, "PointInTimeRecoverySpecification/PointInTimeRecoveryEnabled") is True


def _unprotected(was: Resource, what: str) -> ChangeFinding:
    why = "the next mistake would delete what cannot be made again"
    return refused(was, what, why, "keep it; to delete this on purpose, accept it")


def _replicas(table: Resource) -> dict[str, Mapping[str, Any]]:
    return {str(replica.get("Region")): replica for replica in table.properties.get("Replicas", ())}


def _moved(was: Resource, now: Resource) -> ChangeFinding:
    """The same thing outside, under another logical id or in another stack."""
    what = f"becomes {now.stack} {now.id}"
    if was.type == TABLE and was.stack != now.stack:
        return _emptied(was, now)
    if was.type == APPLICATION:
        return refused(was, what, _REPLACED[APPLICATION], _INSTEAD[APPLICATION])
    if was.type == MAPPING and _is_later(was.stack, now.stack):
        return noted(was, what, "its stack is deployed first: it is deleted there, and goes on here where its group is")
    if was.type == MAPPING:
        why = "the new one is made while the old one is there: 409, the deployment rolls back"
        instead = "keep its id and its stack; or take the topic out, deploy, put it back, deploy"
        return refused(was, what, why, instead)
    why = "its name is taken until the old one goes, and that one is kept: the deployment fails"
    return refused(was, what, why, "keep the ids; or move it by `cdk refactor`, or by an import into the new stack")


def _emptied(was: Resource, now: Resource) -> ChangeFinding:
    """A table whose flow has its tables in another region or account from now on: each has one state stack."""
    return refused(
        was,
        f"is made anew and empty, in {now.stack}",
        "the old one stays where it is, with the positions and the offset map: the flow begins again, and what is "
        "behind its groups' offsets cannot be translated",
        "keep the cluster's `region` and `account`; or copy the flow's five tables there under their names while it is "
        "paused, as by AWS Backup, and accept these: `make deploy` takes them over. To begin again, take another alias",
    )


def _is_later(old: str, new: str) -> bool:
    """Whether a stack with mappings is deployed after another one of its place: `mapping.stacks` has grown."""
    was, now = _WITH_MAPPINGS.fullmatch(old), _WITH_MAPPINGS.fullmatch(new)
    if was is None or now is None or (was["name"], was["place"]) != (now["name"], now["place"]):
        return False
    return int(was["number"] or 0) < int(now["number"] or 0)


_WITH_MAPPINGS: Final = re.compile(r"(?P<name>.+)-(replication|mappings-(?P<number>\d+))-(?P<place>[a-z]{2}-.+)")
"""The names of stacks with mappings, which are deployed by their numbers; the replication stack is the first."""


def _left(stack: str, before: Mapping[tuple[str, str], Resource]) -> ChangeFinding:
    """A stack that leaves the configuration: with it goes what runs in it."""
    data = [each for each in before.values() if each.stack == stack and each.type in DATA]
    lost = [str(each) for each in data if not each.retained]
    why = "its functions, mappings and schedules go; jobs on its application end"
    if data:
        why = "tables and buckets in it stay in the account; a deployment that has them again takes them back"
    if lost:
        why = f"deleted with it, for good: {', '.join(lost)}"
    return ChangeFinding(
        refused=True,
        stack=stack,
        id=stack,
        subject=f"stack {stack}",
        what="has left the configuration, and is deleted before anything is deployed",
        why=why,
        instead="to end what runs in it, accept it by its name. The CDK's own commands leave it where it is, and it "
        "goes on running",
    )


def _gone(was: Resource) -> Iterator[ChangeFinding]:
    if was.type in DATA:
        fate = "it is deleted: without it the flow has no positions and no map"
        if was.retained:
            fate = "it stays in the account, and no template has it; a flow of that name takes it back"
        yield refused(was, "is not in the templates any more", fate, "to end the flow, accept it")
    elif was.type == APPLICATION:
        yield noted(was, "is removed", "jobs that run on it end", "wait until none runs")
    elif was.type == FOUND:
        yield noted(was, "is removed", "the mappings of the flow's found topics are deleted with it")


def _differs(was: Resource, now: Resource, path: str) -> bool:
    return bool(value_at(was.properties, path) != value_at(now.properties, path))


def _shown(resource: Resource, path: str) -> str:
    value = value_at(resource.properties, path)
    return "nothing" if value is None else str(value)
