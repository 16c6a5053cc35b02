"""Destinations that the lab refuses: those that it cannot deliver to."""

from pathlib import Path

import pytest

from lab.esm.destinations import Destinations
from lab.esm.mapping_api import InvalidParameterValueError, ResourceNotFoundError
from lab.esm.mappings import EventSourceMappings

REQUEST = {
    "FunctionName": "forward",
    "Topics": ["orders"],
    "StartingPosition": "TRIM_HORIZON",
    "SelfManagedEventSource": {"Endpoints": {"KAFKA_BOOTSTRAP_SERVERS": ["127.0.0.1:1"]}},
}
QUEUE = "arn:aws:sqs:us-east-1:123456789012:failed"


@pytest.mark.parametrize(
    ("destination", "service"),
    [(QUEUE, "sqs"), ("arn:aws:sns:us-east-1:123456789012:failed", "sns"), ("arn:aws:s3:::failed", "s3")],
)
def test_a_destination_without_a_client_is_missing_its_service(destination: str, service: str) -> None:
    assert Destinations().missing(destination) == service
    everything = Destinations(sqs=object(), sns=object(), s3=object())
    assert everything.missing(destination) == ""


def test_a_topic_needs_no_client_and_no_destination_needs_none() -> None:
    assert Destinations().missing("kafka://orders-dlt") == ""
    assert Destinations().missing("") == ""


def test_an_unreachable_destination_is_refused_before_anything_is_created(tmp_path: Path) -> None:
    mappings = EventSourceMappings(functions={}, folder=tmp_path)

    with pytest.raises(InvalidParameterValueError, match="no sqs client"):
        mappings.create(**REQUEST, DestinationConfig={"OnFailure": {"Destination": QUEUE}})

    assert mappings.list() == []


def test_an_unknown_function_and_an_unknown_cluster_are_not_found(tmp_path: Path) -> None:
    mappings = EventSourceMappings(functions={}, folder=tmp_path)
    managed = {name: value for name, value in REQUEST.items() if name != "SelfManagedEventSource"}

    with pytest.raises(ResourceNotFoundError, match="forward"):
        mappings.create(**REQUEST)
    with pytest.raises(ResourceNotFoundError, match="no cluster"):
        mappings.create(**managed, EventSourceArn="arn:aws:kafka:us-east-1:123456789012:cluster/src/1")
