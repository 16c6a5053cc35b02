"""SNS topics that alarms notify: those of the configuration, and one of our own for an e-mail address.

CloudWatch tells topics of its own region only, so each place takes those that are there. A flow whose alarms would tell
nobody is refused, unless nobody is named at all: then alarms only show their colour.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirrorless.config.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from infra.deployment import Deployment, Location
    from mirrorless.config import Configuration

TOPIC_NAME = "mirrorless-alarms"
"""Our own topic, where an address is named: one in each place."""

_PATH = ("deployment", "alarms", "topic.arns")
_SECTIONS = 6


def listeners(deployment: Deployment, place: Location) -> tuple[str, ...]:
    """The ARNs of the topics that the alarms of a place tell."""
    named = tuple(arn for arn in deployment.settings.alarms.topic_arns if arn.split(":")[3] == place.region)
    return (*named, own_topic(place)) if deployment.settings.alarms.email else named


def own_topic(place: Location) -> str:
    """The ARN of our own topic in a place."""
    return place.arn("sns", TOPIC_NAME)


def paging_problems(configuration: Configuration) -> Iterator[Problem]:
    """What is wrong with the topics that are named, before anything is created."""
    alarms = configuration.deployment.alarms
    homes = {flow.home.region: flow for flow in configuration.enabled_flows}
    reached = set()
    for position, arn in enumerate(alarms.topic_arns):
        sections = arn.split(":")
        if len(sections) != _SECTIONS or sections[2] != "sns":
            yield Problem(
                path=(*_PATH, position),
                what=f"{arn} is not the ARN of an SNS topic",
                hint="write it as arn:aws:sns:us-east-1:111122223333:on-call",
            )
        elif sections[3] not in homes:
            there = ", ".join(sorted(filter(None, homes)))
            yield Problem(
                path=(*_PATH, position),
                what=f"no flow runs in {sections[3]}, and an alarm tells topics of its own region only",
                hint=f"name a topic in {there}, or remove this one",
            )
        else:
            reached.add(sections[3])
    if not alarms.topic_arns or alarms.email:
        return
    for region, flow in homes.items():
        if region is not None and region not in reached:
            yield Problem(
                path=_PATH,
                what=f"no topic is in {region}, where {flow.name} runs: its alarms would tell nobody",
                hint=f"add a topic of {region}, or an `email`",
            )
