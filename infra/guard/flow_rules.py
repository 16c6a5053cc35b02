"""Rules on flows, the mappings of their topics, and their positions: see `change_rules`.

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

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from infra.guard.templates import (
    MAPPING,
    SIDES,
    Resource,
    Templates,
    controls,
    forwarders,
    pulls,
    value_at,
    watched,
)
from infra.guard.verdict import ChangeFinding, noted, refused
from mirrorless.chain.lane import FlowName
from mirrorless.flow.filters import NameFilter, is_literal
from mirrorless.flow.naming import FLOW_VARIABLE, PARTIAL_RESPONSES_VARIABLE, flow_prefix
from mirrorless.flow.policy import HEARTBEATS_TOPIC
from mirrorless.flow.settings import FlowSettings
from mirrorless.topics.discovery import discover, some
from mirrorless.topics.mapping_plan import source_of
from mirrorless.topics.mapping_sync import MOVED_AT_ONCE

GROUP_DAYS: Final = 7
"""How long Kafka keeps the offsets of a group without members, by default (`offsets.retention.minutes`)."""

_READS: Final = "ReportBatchItemFailures"

Resources = Mapping[tuple[str, str], Resource]


def flow_findings(old: Templates, new: Templates, before: Resources, after: Resources) -> Iterator[ChangeFinding]:
    """What changes for lanes."""
    controls_before, controls_after = controls(old), controls(new)
    again = {each.group: each for key, each in after.items() if each.type == MAPPING and key not in before}
    groups = {each.group for each in before.values() if each.type == MAPPING}
    for key, mapping in before.items():
        if mapping.type != MAPPING or key in after:
            continue
        now = again.get(mapping.group)
        if now is None:
            yield from _unmapped(mapping, controls_after)
        elif mapping.stack not in new or mapping.identity != now.identity:
            what = f"is made anew as {now.stack} {now.id}"
            yield noted(mapping, what, "its lanes stand still for some minutes, and go on at its group's offsets")
    for key, mapping in after.items():
        if mapping.type == MAPPING and key not in before and mapping.group not in groups:
            yield from _mapped(mapping, controls_before)
    yield from _without_pull(old, new)
    yield from _redirected(old, new)
    yield from _internal(old, new)
    yield from _renamed(old, new)
    yield from _unfound(old, new)
    yield from _unmasked(old, new)
    yield from _begun(old, new)
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


def _internal(old: Templates, new: Templates) -> Iterator[ChangeFinding]:
    """Flows whose heartbeats, checkpoints or offset syncs go to other topics."""
    before, forwarders_ = controls(old), forwarders(new)
    for flow, now in controls(new).items():
        was = before.get(flow)
        if was is None or flow not in forwarders_ or not (other := _internal_topics(now) - _internal_topics(was)):
            continue
        function, _ = forwarders_[flow]
        yield noted(
            function,
            f"its internal topics get other names: {', '.join(sorted(other))}",
            "those of before stay, and nothing is written to them any more",
            "give clients that read checkpoints or heartbeats, as MirrorMaker's own do, the same settings",
            subject=f"flow {flow} ({function.stack} {function.id})",
        )


def _internal_topics(settings: FlowSettings) -> frozenset[str]:
    policy, source, target = settings.policy, settings.source.alias, settings.target.alias
    return frozenset({policy.heartbeats_topic(), policy.checkpoints_topic(source), policy.offset_syncs_topic(target)})


def _renamed(old: Templates, new: Templates) -> Iterator[ChangeFinding]:
    """Flows that have other aliases from now on: by these their tables, groups and topics are called."""
    before, after = forwarders(old), forwarders(new)
    for was, (function, settings) in before.items():
        for now, (_, others) in after.items():
            if (
                was in after
                or now in before
                or not all(_hosts(settings, side) & _hosts(others, side) for side in SIDES)
            ):
                continue
            yield refused(
                function,
                f"is called {now} from now on",
                "its tables, its groups and its remote topics have the aliases in their names: the new flow begins at "
                "its `start`, and copies everything again, into other topics",
                "keep the aliases; `topic.prefix` names a cluster otherwise in topics only. To begin again, accept it",
                subject=f"flow {was} ({function.stack} {function.id})",
            )


def doubled(here: Templates, elsewhere: Templates) -> Iterator[ChangeFinding]:
    """Flows that another deployment has too, or this one in a place that its file names no more.

    Args:
        here: the templates that would be deployed.
        elsewhere: those of other stacks with forwarders, by their names and places.
    """
    running = {stack: forwarders({stack: template}) for stack, template in elsewhere.items()}
    for flow, (_, settings) in forwarders(here).items():
        for stack, others in running.items():
            function, other = others.get(flow, (None, None))
            if function is None or other is None:
                continue
            if not any(_hosts(settings, side) & _hosts(other, side) for side in SIDES):
                continue
            yield refused(
                function,
                "replicates already, by tables of its own",
                "two deployments of one flow have the same groups on the source and the same topics on the target: "
                "each gets a part of the records, or both write each of them",
                "keep `deployment.name`, `region` and `account`; or take that deployment down first, with the file "
                "that it was deployed with; or give this flow another alias",
                subject=f"flow {flow} ({stack} {function.id})",
            )


def _unfound(old: Templates, new: Templates) -> Iterator[ChangeFinding]:
    """Flows that find fewer topics: no template shows whose mappings go."""
    before, forwarders_ = controls(old), forwarders(new)
    for flow, now in controls(new).items():
        was = before.get(flow)
        if was is None or flow not in forwarders_ or not _finds_topics(was):
            continue
        gone = [each for each in was.topic_filter.patterns if each not in now.topic_filter.patterns]
        fewer = [f"`{each}` is left out of `topics`" for each in gone]
        fewer += [f"`{each}` is excluded" for each in now.topics_exclude if each not in was.topics_exclude]
        if was.heartbeats_replication_enabled and not now.heartbeats_replication_enabled:
            fewer.append("heartbeats are not replicated")
        if fewer:
            function, _ = forwarders_[flow]
            yield noted(
                function,
                f"fewer topics are found from now on: {', '.join(fewer)}",
                "refresh_topics deletes the mappings of those that nothing else names, and `pull` reads them no more; "
                f"named again within {GROUP_DAYS} days, by Kafka's default, they go on where they were",
                f"see by `mirrorless topics '{flow}'` which these are",
                subject=f"flow {flow} ({function.stack} {function.id})",
            )


def _unmasked(old: Templates, new: Templates) -> Iterator[ChangeFinding]:
    """Flows whose rules leave open what they covered."""
    before = forwarders(old)
    for flow, (function, _) in forwarders(new).items():
        if flow not in before:
            continue
        rules = _rules(function)
        opened = []
        for rule in _rules(before[flow][0]):
            for topic in rule["topics"]:
                now = next((each for each in rules if _is_about(each, topic)), {})
                covered = [part for part in sorted(_covered(rule)) if _is_open(now, part)]
                opened += [f"{part.removeprefix('fields ')} of `{topic}`" for part in covered]
        if opened:
            yield refused(
                function,
                f"records are copied with what a rule has kept back: {some(tuple(opened))}",
                "nothing takes back what has left the source",
                "put it back into `transforms`; or accept it",
                subject=f"flow {flow} ({function.stack} {function.id})",
            )


def _begun(old: Templates, new: Templates) -> Iterator[ChangeFinding]:
    """Flows that give up keys or histories: no template shows what a key has encrypted, or which lanes wait."""
    before = forwarders(old)
    for flow, (function, _) in forwarders(new).items():
        if flow not in before:
            continue
        was, now = _written(before[flow][0]), _written(function)
        subject = f"flow {flow} ({function.stack} {function.id})"
        keys = now.get("keys", {})
        gone = [
            f"`{name}` version {version}"
            for name, key in was.get("keys", {}).items()
            for version in key.get("data.keys", {}).keys() - keys.get(name, {}).get("data.keys", {}).keys()
        ]
        if gone:
            yield refused(
                function,
                f"data keys leave: {', '.join(sorted(gone))}",
                "what they have encrypted can be read by nobody any more, unless a copy of the file has them",
                "put them back under `data.keys`; to make such data unreadable on purpose, accept it",
                subject=subject,
            )
        if was.get("start") == "backfill" != now.get("start"):
            yield noted(
                function,
                "lanes begin without their history from now on",
                "those that still wait for a job go on at their next batch, and what lies before can be copied into "
                "another topic only",
                f"see by `mirrorless status '{flow}'` that none waits",
                subject=subject,
            )


def _written(forwarder: Resource) -> dict[str, Any]:
    """Its settings as they were written: those of another version may have other keys."""
    found: dict[str, Any] = json.loads(value_at(forwarder.properties, f"Environment/Variables/{FLOW_VARIABLE}"))
    return found


def _rules(forwarder: Resource) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = _written(forwarder).get("transforms", [])
    return found


def _is_about(rule: Mapping[str, Any], topic: str) -> bool:
    return topic in rule["topics"] or (is_literal(topic) and NameFilter(include=rule["topics"]).accepts(topic))


def _covered(rule: Mapping[str, Any]) -> set[str]:
    """What a rule leaves out, masks or decides about."""
    named = {f"{part} {name}" for part in ("fields", "headers") for name in rule.get(part, {})}
    return {each for each in named | {"key", "value", "keep", "function"} if not _is_open(rule, each)}


def _is_open(rule: Mapping[str, Any], part: str) -> bool:
    kind, _, name = part.partition(" ")
    given = rule.get(kind)
    if name and given is not None:
        given = given.get(name, given.get("*"))
    return not isinstance(given, dict) and given in {None, "", "pass"}


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
