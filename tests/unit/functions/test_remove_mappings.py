"""The custom resource that deletes mappings: every request of CloudFormation gets a response."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from types import ModuleType
from typing import Any

import msgspec
import pytest

from mirrorless.adapters.aws.cloudformation import LONGEST_REASON, TRIES, answer
from mirrorless.errors import MirrorlessError, Retriable
from mirrorless.flow.naming import FLOW_VARIABLE
from mirrorless.topics.mapping_removal import Removal
from tests.support.flows import make_flow


@dataclass(slots=True)
class CloudFormation:
    """The address at which answers are waited for."""

    url: str = ""
    answers: list[dict[str, Any]] = field(default_factory=list)
    methods: list[tuple[str, str | None]] = field(default_factory=list)
    refusals: int = 0
    """How many answers are refused before one is taken."""

    def request(self, kind: str, **changes: Any) -> dict[str, Any]:
        """A custom resource's request."""
        return {
            "RequestType": kind,
            "ResponseURL": self.url,
            "StackId": "stack",
            "RequestId": "request",
            "LogicalResourceId": "Found",
            **({} if kind == "Create" else {"PhysicalResourceId": "found-mappings-us-east.eu-west"}),
            **changes,
        }


@dataclass(slots=True)
class Context:
    """The part of Lambda's context that the function uses."""

    seconds: float = 600

    def get_remaining_time_in_millis(self) -> int:
        """What is left."""
        return int(self.seconds * 1000)


@pytest.fixture
def cloudformation() -> Iterator[CloudFormation]:
    """A server that takes answers."""
    waiting = CloudFormation()

    class Door(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            waiting.methods.append((self.command, self.headers["Content-Type"]))
            waiting.refusals -= 1
            taken = waiting.refusals < 0
            if taken:
                waiting.answers.append(json.loads(body))
            self.send_response(200 if taken else 503)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Door)
    waiting.url = f"http://127.0.0.1:{server.server_port}/answer?signature=s"
    thread = Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield waiting
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def function(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The function, with its flow."""
    monkeypatch.setenv(FLOW_VARIABLE, msgspec.json.encode(make_flow()).decode())
    return importlib.import_module("remove_mappings")


@pytest.mark.parametrize("kind", ["Create", "Update"])
def test_until_the_flow_goes_there_is_nothing_to_do(
    kind: str, function: ModuleType, cloudformation: CloudFormation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(function, "remove", None)

    function.handler(cloudformation.request(kind), Context())

    (answer,) = cloudformation.answers
    ids = {"StackId": "stack", "RequestId": "request", "LogicalResourceId": "Found"}
    physical = {"PhysicalResourceId": "found-mappings-us-east.eu-west"}
    assert answer == {"Status": "SUCCESS", "Reason": "", **ids, **physical}
    assert cloudformation.methods == [("PUT", "")], "its address is not signed for a content type"


def test_a_resource_keeps_its_physical_id(function: ModuleType, cloudformation: CloudFormation) -> None:
    """Another id would be another resource, and the old one's mappings would be deleted."""
    function.handler(cloudformation.request("Update", PhysicalResourceId="of old"), Context())

    assert cloudformation.answers[0]["PhysicalResourceId"] == "of old"


def test_a_deletion_deletes_in_time_to_answer(
    function: ModuleType, cloudformation: CloudFormation, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[float] = []

    def remove(_settings: object, deadline: Any) -> Removal:
        left.append(deadline())
        return Removal(deleted=3)

    monkeypatch.setattr(function, "remove", remove)

    function.handler(cloudformation.request("Delete"), Context(seconds=600))

    assert cloudformation.answers[0]["Status"] == "SUCCESS"
    assert left == [540]


@pytest.mark.parametrize(
    "error", [MirrorlessError("3 are left"), ZeroDivisionError("3 are left"), KeyError("3 are left")]
)
def test_every_error_is_sent_as_the_reason(
    error: Exception, function: ModuleType, cloudformation: CloudFormation, monkeypatch: pytest.MonkeyPatch
) -> None:
    def remove(_settings: object, _deadline: object) -> Removal:
        raise error

    monkeypatch.setattr(function, "remove", remove)

    function.handler(cloudformation.request("Delete"), Context())

    answer = cloudformation.answers[0]
    assert (answer["Status"], "3 are left" in answer["Reason"]) == ("FAILED", True)
    assert answer["PhysicalResourceId"] == "found-mappings-us-east.eu-west"


def test_a_function_without_settings_sends_a_response_too(
    function: ModuleType, cloudformation: CloudFormation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(FLOW_VARIABLE)

    function.handler(cloudformation.request("Delete"), Context())

    assert cloudformation.answers[0]["Status"] == "FAILED"
    assert FLOW_VARIABLE in cloudformation.answers[0]["Reason"]


def test_an_answer_is_tried_again_and_a_long_reason_is_cut(cloudformation: CloudFormation) -> None:
    cloudformation.refusals = TRIES - 1

    answer(cloudformation.request("Delete"), physical_id="x", failure="é" * 9_000, sleep=lambda _seconds: None)

    assert cloudformation.answers[0]["Reason"] == "é" * LONGEST_REASON


def test_an_address_that_takes_nothing_is_an_error_so_that_lambda_runs_it_again(cloudformation: CloudFormation) -> None:
    cloudformation.refusals = 10**6

    with pytest.raises(Retriable, match="503"):
        answer(cloudformation.request("Delete"), physical_id="x", sleep=lambda _seconds: None)
    assert len(cloudformation.methods) == TRIES
