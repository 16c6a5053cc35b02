"""The end of found topics: CloudFormation asks for it when a flow goes, and every mapping that was found is deleted.

The request is a custom resource's. Create and Update have nothing to do; Delete does it. Whatever happens,
CloudFormation is answered before it loses its patience.
"""

from __future__ import annotations

import json
import os
import time
from functools import cache
from typing import Any, Final

from mirrorless.adapters.aws.cloudformation import answer
from mirrorless.adapters.aws.event_source_mappings import CALLS_PER_SECOND, LambdaMappings, lambda_client
from mirrorless.adapters.dynamodb.client import dynamodb_client
from mirrorless.adapters.dynamodb.state_store import DynamoDbDocuments
from mirrorless.naming import FLOW_VARIABLE
from mirrorless.ports.kafka import Deadline
from mirrorless.scheduled.rate_limit import RateLimit
from mirrorless.settings import FlowSettings, decode_settings
from mirrorless.topics.mapping_removal import MappingRemoval, Removal

ANSWER_SECONDS: Final = 60.0
"""What is kept of Lambda's deadline to answer CloudFormation, whose address may need some tries."""

dynamodb = cache(dynamodb_client)
aws_lambda = cache(lambda_client)


def now() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def remove(settings: FlowSettings, deadline: Deadline) -> Removal:
    """Delete the mappings of found topics.

    Raises:
        MirrorlessError: some may be left.
    """
    throttle = RateLimit(per_second=CALLS_PER_SECOND, clock=time.monotonic, sleep=time.sleep)
    return MappingRemoval(
        flow=settings.name,
        mappings=LambdaMappings(aws_lambda(), "", throttle),
        documents=DynamoDbDocuments(dynamodb(settings.target.region, settings.tables_role), settings.tables.control),
        clock=now,
        sleep=time.sleep,
    ).act(deadline)


def handler(event: Any, context: Any) -> None:
    """Do what CloudFormation asks for, and answer it.

    Args:
        event: a custom resource's request.
        context: Lambda's context: the time that is left.
    """
    failure, told, name = "", "nothing to do", ""
    try:
        settings = decode_settings(os.environ.get(FLOW_VARIABLE))
        name = settings.name.slug
        if event["RequestType"] == "Delete":
            removal = remove(settings, lambda: context.get_remaining_time_in_millis() / 1000 - ANSWER_SECONDS)
            told = f"{removal.deleted} mappings deleted, none left. {removal.warning}".strip()
    except Exception as exc:  # noqa: BLE001 -- an error that is not answered lets CloudFormation wait in vain
        failure = str(exc) or repr(exc)
    level = "ERROR" if failure else "INFO"
    print(json.dumps({"level": level, "flow": name, "request": event["RequestType"], "told": failure or told}))
    answer(event, physical_id=f"found-mappings-{name}", failure=failure)
