"""Rules on partial batch responses: a function must not name failed records before its mapping reads them.

A forwarder that names the records that failed (`MIRRORLESS_PARTIAL_RESPONSES`) needs `ReportBatchItemFailures` in every
mapping that calls it: without it, any answer means that all was delivered. A deployment changes the function first,
then the template's mappings, then the schedule by which `refresh_topics` changes those of found topics, a round later.
(https://docs.aws.amazon.com/lambda/latest/dg/services-kafka-errors.html)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from infra.guard.stateful import MAPPING, Resource, Templates, value_at, watched
from infra.guard.template_settings import controls, forwarders
from infra.guard.verdict import ChangeFinding, noted, refused
from mirrorless.lane import FlowName
from mirrorless.naming import PARTIAL_RESPONSES_VARIABLE, flow_prefix
from mirrorless.scheduled.settings import ControlSettings
from mirrorless.topics.discovery import some

READS: Final = "ReportBatchItemFailures"


def answer_findings(old: Templates, new: Templates) -> Iterator[ChangeFinding]:
    """Forwarders that begin to name failed records, and whether the mappings that are there read that."""
    before, told = forwarders(old), controls(old)
    mappings = [each for each in watched(old).values() if each.type == MAPPING]
    for flow, (now, _) in forwarders(new).items():
        was, _ = before.get(flow, (None, {}))
        # A function in another stack is made beside the old one, and mappings go on calling the old one.
        if (
            was is None
            or (was.stack, was.id) != (now.stack, now.id)
            or _names_failures(was)
            or not _names_failures(now)
        ):
            continue
        finds = _finds(told.get(flow))
        group = flow_prefix(FlowName.parse(flow))
        deaf = [
            topic
            for each in mappings
            if each.group.startswith(group) and not _reads(each.properties)
            for topic in each.topics
        ]
        if finds and not _reads(told[flow].mapping):
            deaf.append("those of found topics")
        subject = f"flow {flow} ({was.stack} {was.id})"
        what = "answers with the records that failed from now on"
        if deaf:
            yield refused(
                was,
                f"{what}, and mappings do not read that yet: {some(tuple(deaf))}",
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
    return READS in (mapping.get("FunctionResponseTypes") or ())


def _finds(control: ControlSettings | None) -> bool:
    """Whether the flow may have mappings of found topics: of a pattern's, or of heartbeats from further up."""
    if control is None or control.refresh_topics_seconds is None:
        return False
    return bool(control.topic_filter.patterns) or control.heartbeats_replication
