"""The custom resource that deletes the mappings of discovered topics when CloudFormation deletes a flow.

Create and Update do nothing. Every request gets its response before CloudFormation's timeout, whatever fails.
"""

from __future__ import annotations

import json
import os
import time
from functools import cache
from typing import Any, Final

from mirrorless.adapters.aws.cloudformation import answer
from mirrorless.adapters.aws.event_source_mappings import LambdaMappings, lambda_client
from mirrorless.adapters.dynamodb.client import dynamodb_client
from mirrorless.adapters.dynamodb.state_store import DynamoDbDocuments
from mirrorless.clock import Deadline, now_ms
from mirrorless.flow.naming import CONTROL_CALLS_VARIABLE, FLOW_VARIABLE
from mirrorless.flow.rate_limit import RateLimit
from mirrorless.flow.settings import CALLS_PER_SECOND, FlowSettings, decode_settings
from mirrorless.topics.mapping_removal import MappingRemoval, Removal

ANSWER_SECONDS: Final = 60.0
"""Reserved of Lambda's deadline for the response to CloudFormation, which may need retries."""

dynamodb = cache(dynamodb_client)
aws_lambda = cache(lambda_client)


def remove(settings: FlowSettings, deadline: Deadline) -> Removal:
    """Delete the mappings of discovered topics.

    Raises:
        MirrorlessError: some may be left.
    """
    calls = float(os.environ.get(CONTROL_CALLS_VARIABLE, CALLS_PER_SECOND))
    rate_limit = RateLimit(per_second=calls, clock=time.monotonic, sleep=time.sleep)
    return MappingRemoval(
        flow=settings.name,
        mappings=LambdaMappings(aws_lambda(), "", rate_limit),
        documents=DynamoDbDocuments(dynamodb(settings.target.region, settings.tables_role), settings.tables.control),
        clock=now_ms,
        sleep=time.sleep,
    ).act(deadline)


def handler(event: Any, context: Any) -> None:
    """Handle a request of CloudFormation, and send the response.

    Args:
        event: a custom resource's request.
        context: Lambda's context: the time that is left.
    """
    failure, result, name = "", "nothing to do", ""
    try:
        settings = decode_settings(os.environ.get(FLOW_VARIABLE))
        name = settings.name.slug
        if event["RequestType"] == "Delete":
            removal = remove(settings, lambda: context.get_remaining_time_in_millis() / 1000 - ANSWER_SECONDS)
            result = f"{removal.deleted} mappings deleted, none left. {removal.warning}".strip()
    except Exception as exc:  # noqa: BLE001 -- without a response CloudFormation waits for its timeout
        failure = str(exc) or repr(exc)
    level = "ERROR" if failure else "INFO"
    print(json.dumps({"level": level, "flow": name, "request": event["RequestType"], "result": failure or result}))
    answer(event, physical_id=f"found-mappings-{name}", failure=failure)
