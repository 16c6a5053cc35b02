"""What would a backfill do? Its plan from a request: for `--dry-run`, and the first thing that the job itself makes."""

from __future__ import annotations

import msgspec

from mirrorless.adapters.dynamodb.chains import DynamoDbChains
from mirrorless.adapters.dynamodb.client import dynamodb_client
from mirrorless.adapters.dynamodb.lane_states import DynamoDbLaneStates
from mirrorless.backfill.checks import LaneFacts, check_all
from mirrorless.backfill.plan import BackfillPlan, PlannedLane, make_plan
from mirrorless.errors import ConfigurationError
from mirrorless.jobs.archive import Survey
from mirrorless.jobs.request import BackfillOptions, JobRequest
from spark.backfill_facts import BackfillFacts
from spark.lane_worker import now, warm_archive, warm_log

LANES_AT_A_TIME = 2
"""Where nobody says how many: the cores of the smallest worker."""


def plan_backfill(request: JobRequest, *, lanes_at_a_time: int = 0, survey: Survey | None = None) -> BackfillPlan:
    """Look at everything and write nothing. Needs no Spark.

    Args:
        request: what is asked for.
        lanes_at_a_time: 0 where nobody knows yet.
        survey: counts what an archive has, lanes side by side; without it they are counted here, one after the other.

    Raises:
        ConfigurationError: this is no backfill's request, or a topic is not there.
        Retriable: a cluster or a store does not answer.
    """
    options = request.options
    if not isinstance(options, BackfillOptions):
        raise ConfigurationError(f"this is a request for {request.kind}", where=request.run_id)
    flow = request.flow
    dynamodb = dynamodb_client(flow.target.region, flow.tables_role)
    archive = warm_archive(options.archive) if options.archive is not None else None
    facts = BackfillFacts(
        request=request,
        options=options,
        log=archive or warm_log(msgspec.json.encode(flow.source), flow.flow),
        archive=archive,
        survey=survey,
        chains=DynamoDbChains(dynamodb, flow.tables.offset_map, retention_days=flow.map_retention_days),
        states=DynamoDbLaneStates(dynamodb, flow.tables.lanes),
    )
    lanes = facts.lanes()
    findings = check_all(
        lanes,
        facts.topics(),
        options,
        replication_factor=flow.replication_factor,
        holder=request.run_id,
        now=now(),
    )
    hands_over = options.end.kind == "latest" and options.into is None and options.archive is None
    return make_plan(
        request.run_id,
        flow.flow,
        [_planned(facts, lane) for lane in lanes],
        findings,
        at_a_time=lanes_at_a_time or LANES_AT_A_TIME,
        max_mb_per_second=options.max_mb_per_second,
        hands_over=hands_over,
    )


def _planned(facts: BackfillFacts, lane: LaneFacts) -> PlannedLane:
    wanted = lane.asked.range
    return PlannedLane(
        topic=lane.topic,
        partition=lane.partition,
        lane_topic=facts.lane_topic(lane.topic),
        write_topic=facts.write_topic(lane.topic),
        range=wanted,
        position=lane.position,
        offsets=max(0, wanted.next - max(lane.position, wanted.first)),
        bytes=lane.bytes,
        group="" if facts.options.into is not None else facts.request.flow.consumer_group(lane.topic),
    )
