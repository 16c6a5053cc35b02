"""What a deployment needs of a configuration, and the lab does not: regions and accounts, short names, networks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirrorless.config.cluster import secrets_of
from mirrorless.config.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mirrorless.config import Configuration
    from mirrorless.config.flow import Flow

LONGEST_NAME = 64
"""Characters of the name of a function, a schedule or a role at most, by Lambda, EventBridge Scheduler and IAM."""

LONGEST_PART = "remove_mappings"
"""The longest of the parts that a resource is named by."""

_PATH = ("deployment", "alarms", "topic.arns")
_SECTIONS = 6


def deployment_problems(configuration: Configuration) -> Iterator[Problem]:
    """What is missing or wrong, in the order of the document."""
    for flow in configuration.enabled_flows:
        for end in (flow.home, flow.target, *([flow.pull_home] if flow.has_pull else [])):
            path = ("clusters", end.alias)
            if end.region is None:
                what = f"{flow.name} is deployed in its region, and none is written"
                yield Problem(path=(*path, "region"), what=what, hint="add `region: us-east-1`, or whichever it is")
            if end.account is None:
                what = f"{flow.name} is deployed in its account, and none is written"
                yield Problem(path=(*path, "account"), what=what, hint='add `account: "111122223333"`, yours')
        if (length := len(flow.resource_name(LONGEST_PART))) > LONGEST_NAME:
            what = f"a function would have a name of {length} characters, and Lambda takes {LONGEST_NAME}"
            yield Problem(path=("flows", str(flow.name)), what=what, hint="shorten the cluster aliases")
        yield from _standby_problems(flow)
        if flow.settings.start == "backfill":
            yield from _jobs_problems(flow, spark_enabled=configuration.deployment.spark.enabled)
        for end in filter(None, (flow.home, flow.pull_home if flow.has_pull else None, flow.standby)):
            if (network := end.vpc) and network.endpoints and network.id is None:
                what = "endpoints are made in a VPC, and its id is not written"
                yield Problem(path=("clusters", end.alias, "vpc", "id"), what=what, hint="add `id: vpc-…`")
        yield from _poller_problems(flow)
    yield from _paging_problems(configuration)


def _poller_problems(flow: Flow) -> Iterator[Problem]:
    """Why pollers on demand would not reach the endpoints that are made for them.

    They carry the cluster's own security groups, and are in its subnets.
    (https://docs.aws.amazon.com/lambda/latest/dg/with-msk-cluster-network.html)
    """
    home = flow.home
    if flow.polled_on_demand and home.vpc and home.vpc.endpoints and not home.msk_groups:
        yield Problem(
            path=("clusters", home.alias, "msk.security.groups"),
            what=f"the pollers of {flow.name} carry the cluster's own security groups, which the endpoints must let in",
            hint="add `msk.security.groups: [sg-…]`, as `aws kafka describe-cluster-v2` lists them",
        )


def _standby_problems(flow: Flow) -> Iterator[Problem]:
    """Why a flow's standby could not work without the home's region."""
    if flow.standby is None:
        return
    for secret in secrets_of(flow.target.authentication):
        if secret.startswith("arn:") and secret.split(":")[3] != flow.target.region:
            yield Problem(
                path=("clusters", flow.target.alias, "authentication", "secret"),
                what=f"{secret} is lost with its region, and {flow.name} goes on in {flow.target.region} without it",
                hint="write the secret's name, and make it in both regions; or write in the flow "
                "`function: {standby.enabled: false}`",
            )


def _jobs_problems(flow: Flow, *, spark_enabled: bool) -> Iterator[Problem]:
    """Why no job could ever release the lanes of a flow that begins with one."""
    if not spark_enabled:
        what = f"{flow.name} begins with a Spark job, and there are to be none"
        yield Problem(path=("deployment", "spark", "enabled"), what=what, hint="write `start: earliest`, or enable it")
    elif flow.jobs_home.vpc is None:
        what = f"{flow.name} begins with a Spark job, which reaches no broker without a network"
        hint = "add `vpc`: the network in the cluster's region that its brokers are reached from"
        yield Problem(path=("clusters", flow.jobs_home.alias, "vpc"), what=what, hint=hint)


def _paging_problems(configuration: Configuration) -> Iterator[Problem]:
    """What is wrong with the topics that are named, before anything is created."""
    if not configuration.enabled_flows:
        return  # the last one is taken down, and nothing notifies anyone
    alarms = configuration.deployment.alarms
    homes = {flow.home.region: flow for flow in configuration.enabled_flows}
    homes |= {flow.pull_home.region: flow for flow in configuration.enabled_flows if flow.has_pull} | homes
    homes |= {flow.standby.region: flow for flow in configuration.enabled_flows if flow.standby} | homes
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
                what=f"no flow runs in {sections[3]}, and an alarm notifies topics of its own region only",
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
                what=f"no topic is in {region}, where {flow.name} runs: its alarms would notify no topic",
                hint=f"add a topic of {region}, or an `email`",
            )
