"""What a place's account has too little of: those that are new start with a hundredth of the usual.

An account answers for Lambda's concurrency, EMR Serverless's vCPU, and the zones of subnets. Only what a deployment
would fail by is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from botocore.exceptions import BotoCoreError, ClientError

from infra import spark_settings
from infra.guard.verdict import ChangeFinding
from mirrorless.flow.naming import FORWARD, PULL, STANDBY
from mirrorless.scheduled.functions import SCHEDULED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from infra.deployed import Lookups
    from infra.deployment import Deployment, Location

UNRESERVED: Final = 100
"""Executions that Lambda keeps for functions without a reservation
(https://docs.aws.amazon.com/lambda/latest/dg/configuration-concurrency.html)."""

CONCURRENCY: Final = ("lambda", "L-B99A9384")
VCPU: Final = ("emr-serverless", "L-D05C8A75")
"""Quotas, as Service Quotas has them: a service and a code."""

WITHOUT_JOBS: Final = frozenset({"use1-az3", "cac1-az4"})
"""Zones of regions with EMR Serverless that have none
(https://docs.aws.amazon.com/emr/latest/EMR-Serverless-UserGuide/endpoints-quotas.html)."""


def quota_findings(deployment: Deployment, lookups: Lookups) -> Iterator[ChangeFinding]:
    """What each place's account lacks; what it does not answer is noted."""
    for place in deployment.places:
        for check in (_concurrency, _vcpu, _zones):
            try:
                yield from check(deployment, place, lookups)
            except (ClientError, BotoCoreError) as exc:
                yield _found(place, f"a quota is not checked: {exc}")


def at_once(deployment: Deployment, place: Location) -> int:
    """How many functions may run in the same second there, where each mapping delivers one event at a time."""
    home, pull = deployment.flows_at(FORWARD, place), deployment.flows_at(PULL, place)
    forwarders = sum(max(1, len(flow.flow.template_topics)) for flow in home)
    scheduled = sum(each.has_work(flow.schedule_input()) for flow in home for each in SCHEDULED)
    shards = sum(flow.flow.settings.schedule.shards for flow in pull)
    return forwarders + scheduled + shards + len(deployment.flows_at(STANDBY, place))


def _concurrency(deployment: Deployment, place: Location, lookups: Lookups) -> Iterator[ChangeFinding]:
    limits = lookups.client("lambda", place).get_account_settings()["AccountLimit"]
    has = limits["ConcurrentExecutions"]
    reserved = sum(
        flow.flow.settings.function.reserved_concurrency or 0 for flow in deployment.flows_at(FORWARD, place)
    )
    if reserved and has - reserved < UNRESERVED:
        what = f"`reserved.concurrency` takes {reserved} of {has} concurrent executions of Lambda, which keeps "
        what += f"{UNRESERVED} for other functions, and refuses"
        instead = f"leave `reserved.concurrency` out, or ask for more: {_more(place, CONCURRENCY, 1000)}"
        yield _found(place, what, why="the replication stack would be rolled back", instead=instead)
    elif has < (wanted := at_once(deployment, place)):
        what = f"{wanted} functions may run at once, and it has {has} concurrent executions of Lambda: calls are "
        yield _found(place, f"{what}throttled, and repeated later. Ask for more: {_more(place, CONCURRENCY, 1000)}")


def _vcpu(deployment: Deployment, place: Location, lookups: Lookups) -> Iterator[ChangeFinding]:
    flows, most = deployment.flows_at("jobs", place), deployment.settings.spark.maximum_vcpu
    if not flows or not deployment.settings.spark.enabled:
        return
    service, code = VCPU
    answer = lookups.client("service-quotas", place).get_service_quota(ServiceCode=service, QuotaCode=code)
    has, wanted = int(answer["Quota"]["Value"]), most * len({spark_settings.application_name(flow) for flow in flows})
    if has < wanted:
        what = f"jobs may take {wanted} vCPU at once, and it has {has} of EMR Serverless: jobs beyond fail. Write "
        what += f"`deployment: {{spark: {{maximum.vcpu: …}}}}`, or ask for more: {_more(place, VCPU, wanted)}"
        yield _found(place, what)


def _zones(deployment: Deployment, place: Location, lookups: Lookups) -> Iterator[ChangeFinding]:
    """Names of zones differ by account, their ids do not."""
    flows = deployment.flows_at("jobs", place) if deployment.settings.spark.enabled else ()
    subnets = sorted({subnet for flow in flows if (vpc := flow.flow.jobs_home.vpc) for subnet in vpc.subnets})
    if not subnets:
        return
    for each in lookups.client("ec2", place).describe_subnets(SubnetIds=subnets)["Subnets"]:
        if (zone := each["AvailabilityZoneId"]) in WITHOUT_JOBS:
            yield _found(place, f"{each['SubnetId']} is in {zone}, where no job runs: name subnets of other zones")


def _more(place: Location, quota: tuple[str, str], wanted: int) -> str:
    service, code = quota
    command = f"aws service-quotas request-service-quota-increase --region {place.region} --service-code {service}"
    return f"`{command} --quota-code {code} --desired-value {wanted}`"


def _found(place: Location, what: str, *, why: str = "", instead: str = "") -> ChangeFinding:
    return ChangeFinding(
        refused=bool(instead),
        stack="quotas",
        id=f"quotas-{place.region}",
        subject=f"account {place}",
        what=what,
        why=why,
        instead=instead,
    )
