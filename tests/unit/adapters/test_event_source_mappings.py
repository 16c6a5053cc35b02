"""Requests to the Lambda API, and its answers: held against the API's own model by botocore."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber

from mirrorless.adapters.aws.event_source_mappings import LambdaMappings
from mirrorless.errors import Retriable
from mirrorless.flow.rate_limit import RateLimit
from mirrorless.topics.mapping_plan import MappingOutcome, MappingRefused

UUID = "14e0db71-5d35-4eb5-b481-8945cf9d10c2"
OTHER = UUID.replace("1", "2")
ARN = f"arn:aws:lambda:eu-west-1:111122223333:event-source-mapping:{UUID}"
REQUEST = {"Topics": ["orders"], "StartingPosition": "TRIM_HORIZON"}


@pytest.fixture
def api() -> Iterator[Stubber]:
    """A client with scripted answers, which refuses what the model does not have."""
    keys = {"aws_access_key_id": "k", "aws_secret_access_key": "s"}
    client = boto3.client("lambda", region_name="eu-west-1", **keys)
    with Stubber(client) as stubber:
        yield stubber
        stubber.assert_no_pending_responses()
    client.close()


def mappings(api: Stubber, function: str = "forward") -> LambdaMappings:
    pace = RateLimit(per_second=10, clock=lambda: 0.0, sleep=lambda _seconds: None)
    return LambdaMappings(api.client, function, pace)


def ample() -> float:
    return 60.0


def test_mappings_are_listed_page_by_page(api: Stubber) -> None:
    page: dict[str, Any] = {"FunctionName": "forward", "MaxItems": 100}
    first, second = ({"EventSourceMappings": [{"UUID": each}]} for each in (UUID, OTHER))
    api.add_response("list_event_source_mappings", {**first, "NextMarker": "more"}, page)
    api.add_response("list_event_source_mappings", second, page | {"Marker": "more"})

    assert mappings(api).list(ample) == [{"UUID": UUID}, {"UUID": OTHER}]


def test_without_a_function_every_mapping_of_the_account_is_listed(api: Stubber) -> None:
    api.add_response("list_event_source_mappings", {"EventSourceMappings": [{"UUID": UUID}]}, {"MaxItems": 100})

    assert mappings(api, "").list(ample) == [{"UUID": UUID}]


def test_an_alias_is_in_the_requests_by_its_name(api: Stubber) -> None:
    request = {"FunctionName": "forward:live"}
    api.add_response("list_event_source_mappings", {"EventSourceMappings": []}, request | {"MaxItems": 100})
    api.add_response("create_event_source_mapping", {}, request | REQUEST)

    ours = mappings(api, "forward:live")

    assert ours.list(ample) == []
    assert ours.create(dict(REQUEST), ample) == "done"


def test_tags_are_read_and_a_mapping_that_is_gone_has_none(api: Stubber) -> None:
    api.add_response("list_tags", {"Tags": {"owner": "us"}}, {"Resource": ARN})
    api.add_client_error("list_tags", "ResourceNotFoundException", http_status_code=404)
    api.add_client_error("list_tags", "InvalidParameterValueException", http_status_code=400)

    ours = mappings(api)

    assert ours.tags(ARN, ample) == {"owner": "us"}
    assert ours.tags(ARN, ample) == {}
    with pytest.raises(MappingRefused):
        ours.tags(ARN, ample)


def test_a_mapping_is_created_updated_and_deleted_in_the_apis_words(api: Stubber) -> None:
    api.add_response("create_event_source_mapping", {}, {"FunctionName": "forward", **REQUEST})
    api.add_response("update_event_source_mapping", {}, {"UUID": UUID, "BatchSize": 7})
    api.add_response("delete_event_source_mapping", {}, {"UUID": UUID})

    ours = mappings(api)

    assert ours.create(dict(REQUEST), ample) == "done"
    assert ours.update(UUID, {"BatchSize": 7}, ample) == "done"
    assert ours.delete(UUID, ample) == "done"


@pytest.mark.parametrize(
    ("operation", "code", "outcome"),
    [
        ("create", "ResourceConflictException", "there"),
        ("delete", "ResourceNotFoundException", "there"),
        ("delete", "ResourceInUseException", "busy"),
    ],
)
def test_what_was_done_already_is_fine_and_what_is_busy_can_wait(
    api: Stubber, operation: str, code: str, outcome: MappingOutcome
) -> None:
    api.add_client_error(f"{operation}_event_source_mapping", code, http_status_code=409)

    ours = mappings(api)

    assert (ours.create(dict(REQUEST), ample) if operation == "create" else ours.delete(UUID, ample)) == outcome


@pytest.mark.parametrize("code", ["InvalidParameterValueException", "ResourceNotFoundException"])
def test_a_request_that_lambda_refuses_says_why_and_that_a_retry_does_not_help(api: Stubber, code: str) -> None:
    api.add_client_error("create_event_source_mapping", code, "no such secret")

    with pytest.raises(MappingRefused, match=r"no such secret.*a retry does not help"):
        mappings(api).create(dict(REQUEST), ample)


def test_a_field_that_is_not_in_the_api_is_refused_before_it_is_sent(api: Stubber) -> None:
    api.deactivate()

    with pytest.raises(MappingRefused, match="BatchSise"):
        mappings(api).create({"BatchSise": 7}, ample)


@pytest.mark.parametrize("code", ["TooManyRequestsException", "ServiceException", "AccessDeniedException"])
def test_what_concerns_every_mapping_ends_the_round(api: Stubber, code: str) -> None:
    api.add_client_error("create_event_source_mapping", code, http_status_code=400)

    with pytest.raises(Retriable):
        mappings(api).create(dict(REQUEST), ample)


def test_nothing_is_requested_after_the_deadline(api: Stubber) -> None:
    with pytest.raises(Retriable, match="no time"):
        mappings(api).list(lambda: -1.0)
