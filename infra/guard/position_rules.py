"""Rules on positions: topics that change hands, and flows that write to other places than before.

Who maps a topic is decided by how the flow names it: the template if literally, `refresh_topics` if by a pattern. Both
give its mapping the same consumer group, and Lambda takes a group once for each source. So

    literal -> pattern   works: the template's mapping is gone before the schedule learns of the change, and the next
                         round makes another, which goes on by the group's offsets
    pattern -> literal   fails: the template's mapping is made while the found one is there (409, and a rollback)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from infra.guard.stateful import MAPPING, Resource, Templates
from infra.guard.template_settings import SIDES, controls, forwarders
from infra.guard.verdict import ChangeFinding, noted, refused
from mirrorless.policy import HEARTBEATS_TOPIC
from mirrorless.scheduled.settings import ControlSettings
from mirrorless.topics.discovery import discover

GROUP_DAYS: Final = 7
"""How long Kafka keeps the offsets of a group without members, by default (`offsets.retention.minutes`)."""

Resources = Mapping[tuple[str, str], Resource]


def position_findings(old: Templates, new: Templates, before: Resources, after: Resources) -> Iterator[ChangeFinding]:
    """What changes for lanes."""
    told_before, told_after = controls(old), controls(new)
    known = {each.identity for each in before.values()}
    kept = {each.identity for each in after.values()}
    for key, mapping in before.items():
        if mapping.type == MAPPING and key not in after and mapping.identity not in kept:
            yield from _unmapped(mapping, told_after)
    for key, mapping in after.items():
        if mapping.type == MAPPING and key not in before and mapping.identity not in known:
            yield from _mapped(mapping, told_before)
    yield from _redirected(old, new)


def _unmapped(mapping: Resource, told: Mapping[str, ControlSettings]) -> Iterator[ChangeFinding]:
    """A mapping leaves the template."""
    for topic in mapping.topics:
        control = _control_of(mapping, told)
        if control is not None and _finds(control, topic):
            yield noted(mapping, f"{topic} is found by a pattern from now on", "its lanes stand still for some minutes")
        else:
            why = f"its lanes stop; put back within {GROUP_DAYS} days, by Kafka's default, they go on where they were"
            yield noted(mapping, f"{topic} is not mapped any more", why)


def _mapped(mapping: Resource, told: Mapping[str, ControlSettings]) -> Iterator[ChangeFinding]:
    """A mapping comes into the template."""
    control = _control_of(mapping, told)
    for topic in mapping.topics:
        if control is None or not _finds(control, topic):
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


def _finds(control: ControlSettings, topic: str) -> bool:
    """Whether the schedule of these settings maps this topic."""
    return control.refresh_topics_seconds is not None and topic in discover({topic: 1}, control).mapped


def _control_of(mapping: Resource, told: Mapping[str, ControlSettings]) -> ControlSettings | None:
    """The settings of the flow that a mapping belongs to, told by its group."""
    return next((each for each in told.values() if mapping.group.startswith(each.consumer_group(""))), None)


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
        if any(was.get(name) != now.get(name) for name in _NAMING):
            changes.insert(0, "remote topics get other names")
        if changes:
            yield refused(
                function,
                ", ".join(changes),
                "lanes go on at their positions in other logs than those that the offset map speaks of",
                "make a flow with another alias. The same cluster under other addresses: accept it",
                subject=f"flow {flow} ({function.stack} {function.id})",
            )


def _hosts(settings: Mapping[str, Any], side: str) -> set[str]:
    """The brokers of one side, without ports: those change with the authentication."""
    return {each.rpartition(":")[0].strip().lower() for each in str(settings[side]["bootstrap"]).split(",")}


_NAMING: Final = ("policy", "separator")
"""What decides how remote topics are called."""
