"""Rules on stateful resources, mappings and positions: two sets of templates in, findings out, without any call of AWS.

Refused is what loses data, makes a resource anew, or fails half-way. Noted is what an operator should read before.

Who maps a topic is decided by how the flow names it: the template if literally, `refresh_topics` if by a pattern, or if
an entry of `trigger.overrides` is about it. Both give its mapping the same consumer group, and Lambda takes a group
once for each source. So

    literal -> pattern   works: the template's mapping is gone before the schedule learns of the change, and the next
                         round makes another, which goes on by the group's offsets
    pattern -> literal   fails: the template's mapping is made while the found one is there (409, and a rollback)
    literal -> schedule  works: the template's mapping is gone before `pull` reads the topic
    schedule -> literal  reads weeks again: the template's mapping goes on by the group's offsets, which nothing has set

A forwarder that names the records that failed (`MIRRORLESS_PARTIAL_RESPONSES`) needs `ReportBatchItemFailures` in every
mapping that calls it: without it, any answer means that all was delivered. A deployment changes the function first,
then the template's mappings, then the schedule by which `refresh_topics` changes those of found topics, a round later.
(https://docs.aws.amazon.com/lambda/latest/dg/services-kafka-errors.html)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from infra.guard.templates import (
    APPLICATION,
    BUCKET,
    DATA,
    FOUND,
    MAPPING,
    SIDES,
    TABLE,
    Resource,
    Templates,
    changeable_at_times,
    controls,
    forwarders,
    pulls,
    unchangeable,
    value_at,
    watched,
)
from infra.guard.verdict import CHANGEABLE, ApplicationState, ChangeFinding, noted, refused
from mirrorless.chain.lane import FlowName
from mirrorless.flow.naming import PARTIAL_RESPONSES_VARIABLE, flow_prefix
from mirrorless.flow.policy import HEARTBEATS_TOPIC
from mirrorless.flow.settings import FlowSettings
from mirrorless.topics.discovery import discover, some
from mirrorless.topics.mapping_plan import source_of
from mirrorless.topics.mapping_sync import MOVED_AT_ONCE

StateOf = Callable[[Resource], ApplicationState | None]
"""The state of an application as EMR Serverless has it; None where that is not known, or there is none."""


def findings(old: Templates, new: Templates, state_of: StateOf = lambda _: None) -> list[ChangeFinding]:
    """Everything that changes, what is refused first."""
    before, after = watched(old), watched(new)
    change = _Change(before, after, {each.identity: each for each in after.values() if each.identity}, state_of)
    left = [_left(stack, before) for stack in old if stack not in new]
    found = [*left, *change.findings(new), *_mapping_findings(old, new, before, after)]
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
            if was.stack not in new:
                continue  # it goes as a whole, before anything else is made
            if now is not None and now.type == was.type:
                yield from _kept(was, now, self.state_of)
            elif (moved := self.named.get(was.identity)) is not None:
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
    rest = sorted(
        name
        for name in was.properties.keys() | now.properties.keys()
        if was.properties.get(name) != now.properties.get(name)
        and not any(path.split("/")[0] == name for path in (*fixed, *at_times))
    )
    if rest:
        yield noted(was, f"changed in place: {', '.join(rest)}")


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


GROUP_DAYS: Final = 7
"""How long Kafka keeps the offsets of a group without members, by default (`offsets.retention.minutes`)."""

_READS: Final = "ReportBatchItemFailures"

Resources = Mapping[tuple[str, str], Resource]


def _mapping_findings(old: Templates, new: Templates, before: Resources, after: Resources) -> Iterator[ChangeFinding]:
    """What changes for lanes."""
    controls_before, controls_after = controls(old), controls(new)
    known = {each.identity for each in before.values()}
    kept = {each.identity for each in after.values()}
    for key, mapping in before.items():
        if mapping.type == MAPPING and key not in after and mapping.identity not in kept:
            yield from _unmapped(mapping, controls_after)
    for key, mapping in after.items():
        if mapping.type == MAPPING and key not in before and mapping.identity not in known:
            yield from _mapped(mapping, controls_before)
    yield from _without_pull(old, new)
    yield from _redirected(old, new)
    yield from _readdressed(old, new)
    yield from _named_failures(old, new)


def _unmapped(mapping: Resource, controls_: Mapping[str, FlowSettings]) -> Iterator[ChangeFinding]:
    """A mapping leaves the template."""
    for topic in mapping.topics:
        control = _control_of(mapping, controls_)
        if control is not None and _schedules_topic(control, topic):
            yield noted(
                mapping, f"{topic} is scheduled from now on", "its lanes stand still until the next run reads it"
            )
        elif control is not None and _finds_topic(control, topic):
            literal = topic in control.topic_filter.literals
            what = f"{topic} is {'mapped by refresh_topics' if literal else 'found by a pattern'} from now on"
            yield noted(mapping, what, "its lanes stand still for some minutes")
        else:
            why = f"its lanes stop; put back within {GROUP_DAYS} days, by Kafka's default, they go on where they were"
            yield noted(mapping, f"{topic} is not mapped any more", why)


def _mapped(mapping: Resource, controls_: Mapping[str, FlowSettings]) -> Iterator[ChangeFinding]:
    """A mapping comes into the template."""
    control = _control_of(mapping, controls_)
    for topic in mapping.topics:
        if control is not None and _changed_back(control, topic):
            yield refused(
                mapping,
                f"{topic} was scheduled, or has changed back from that, and no entry is about it now",
                "the template's mapping would go on by old offsets of its group, and read again what came since; or "
                "refresh_topics has a mapping with the same group: 409, the deployment rolls back",
                f"write `trigger.overrides: {{{topic}: mapping}}` and keep it: refresh_topics maps the topic where its "
                "chains stand",
            )
            continue
        if control is None or not _finds_topic(control, topic):
            begin = mapping.properties.get("StartingPosition")
            yield noted(mapping, f"{topic} is replicated from now on", f"from its group's offsets, otherwise {begin}")
            continue
        leave_out = f"add {topic} to `topics.exclude`"
        if topic.endswith(HEARTBEATS_TOPIC) and not control.topic_filter.accepts(topic):
            leave_out = "set `heartbeats.replication.enabled: false`"
        yield refused(
            mapping,
            f"{topic} was found by a pattern, and is named literally now",
            "refresh_topics has a mapping with the same group for it: 409, the deployment rolls back",
            f"{leave_out} and deploy; wait until no mapping has this group; take that back, name the topic and deploy. "
            "Records wait on the source meanwhile; copied ACLs of its remote topic go and come again, unless "
            "`sync.topic.acls.enabled` is false for that time. If the source has no such topic yet, accept it",
        )


def _finds_topic(control: FlowSettings, topic: str) -> bool:
    """Whether the schedule of these settings maps this topic."""
    return control.refresh_topics_enabled and topic in discover({topic: 1}, control).mapped


def _schedules_topic(control: FlowSettings, topic: str) -> bool:
    """Whether a schedule reads this topic."""
    return topic in discover({topic: 1}, control).scheduled


def _changed_back(control: FlowSettings, topic: str) -> bool:
    """Whether this topic is scheduled, or named literally and mapped by `refresh_topics` for what it once was."""
    literal = topic in control.topic_filter.literals
    return _schedules_topic(control, topic) or (literal and topic not in control.template_topics)


def _control_of(mapping: Resource, controls_: Mapping[str, FlowSettings]) -> FlowSettings | None:
    """The settings of the flow that a mapping belongs to, by its group."""
    return next((each for each in controls_.values() if mapping.group.startswith(each.consumer_group(""))), None)


def _without_pull(old: Templates, new: Templates) -> Iterator[ChangeFinding]:
    """Flows that stay, and whose scheduled topics lose their reader."""
    kept = pulls(new)
    for flow, schedule in pulls(old).items():
        if flow not in kept and flow in controls(new):
            yield noted(
                schedule,
                "scheduled topics are not read any more",
                "those that change back to mappings stand still until refresh_topics has mapped them, some minutes",
                "to read them until then, keep a section `schedule`, "
                f"until `mirrorless topics '{flow}'` shows no topic changing",
                subject=f"flow {flow} ({schedule.stack} {schedule.id})",
            )


def _redirected(old: Templates, new: Templates) -> Iterator[ChangeFinding]:
    """Flows of the same name that write to other topics, or seem to have other clusters."""
    before = forwarders(old)
    for flow, (_, now) in forwarders(new).items():
        if flow not in before:
            continue
        function, was = before[flow]
        changes = [
            f"no broker of the {side} is the same" for side in SIDES if not _hosts(was, side) & _hosts(now, side)
        ]
        # A name that ends so has its prefix under `identity` too.
        if any(was.remote_topic(topic) != now.remote_topic(topic) for topic in ("orders", HEARTBEATS_TOPIC)):
            changes.insert(0, "remote topics get other names")
        if changes:
            yield refused(
                function,
                ", ".join(changes),
                "lanes go on at their positions in other logs than those in the offset map",
                "make a flow with another alias. The same cluster under other addresses: accept it",
                subject=f"flow {flow} ({function.stack} {function.id})",
            )


def _readdressed(old: Templates, new: Templates) -> Iterator[ChangeFinding]:
    """Flows whose source gets other addresses: no update of a mapping changes these."""
    before, forwarders_ = controls(old), forwarders(new)
    for flow, now in controls(new).items():
        was = before.get(flow)
        if (
            was is None
            or flow not in forwarders_
            or not _finds_topics(was)
            or source_of(was.mapping_template) == source_of(now.mapping_template)
        ):
            continue
        function, _ = forwarders_[flow]
        yield noted(
            function,
            "mappings of found topics get other addresses of the source: each is deleted and made anew",
            f"each topic stands still for some minutes: one first, then {MOVED_AT_ONCE} at a time once it polls; each "
            "goes on where its chains stand",
            "keep the old addresses answering until `mirrorless status` shows no trouble of the task topics",
            subject=f"flow {flow} ({function.stack} {function.id})",
        )


def _hosts(settings: FlowSettings, side: str) -> set[str]:
    """The brokers of one side, without ports: those change with the authentication."""
    return {each.rpartition(":")[0].strip().lower() for each in getattr(settings, side).bootstrap.split(",")}


def _named_failures(old: Templates, new: Templates) -> Iterator[ChangeFinding]:
    """Forwarders that begin to name failed records, and whether the mappings that are there read that."""
    before, controls_ = forwarders(old), controls(old)
    mappings = [each for each in watched(old).values() if each.type == MAPPING]
    for flow, (now, _) in forwarders(new).items():
        was, _ = before.get(flow, (None, None))
        # A function in another stack is made beside the old one, and mappings go on calling the old one.
        if (
            was is None
            or (was.stack, was.id) != (now.stack, now.id)
            or _names_failures(was)
            or not _names_failures(now)
        ):
            continue
        finds = _finds_topics(controls_.get(flow))
        group = flow_prefix(FlowName.parse(flow))
        unready = [
            topic
            for each in mappings
            if each.group.startswith(group) and not _reads(each.properties)
            for topic in each.topics
        ]
        if finds and not _reads(controls_[flow].mapping_template):
            unready.append("those of found topics")
        subject = f"flow {flow} ({was.stack} {was.id})"
        what = "answers with the records that failed from now on"
        if unready:
            yield refused(
                was,
                f"{what}, and mappings do not read that yet: {some(tuple(unready))}",
                "the function changes before its mappings: until they follow, failed records count as delivered: lost",
                "deploy twice: first the mappings' mode with `partial.batch.response: false`; then, once every mapping "
                "of the flow is provisioned, without it",
                subject=subject,
            )
        elif finds:
            before_that = "see that each is provisioned: refresh_topics changes them some minutes after a deployment"
            yield noted(
                was,
                what,
                "the mappings of found topics must read that, and no template shows them",
                before_that,
                subject=subject,
            )


def _names_failures(forwarder: Resource) -> bool:
    return bool(value_at(forwarder.properties, f"Environment/Variables/{PARTIAL_RESPONSES_VARIABLE}") == "true")


def _reads(mapping: Mapping[str, Any]) -> bool:
    return _READS in (mapping.get("FunctionResponseTypes") or ())


def _finds_topics(control: FlowSettings | None) -> bool:
    """Whether the flow may have mappings of found topics: of a pattern's, or of heartbeats from further up."""
    if control is None or not control.refresh_topics_enabled:
        return False
    return bool(control.topic_filter.patterns) or control.heartbeats_replication_enabled
