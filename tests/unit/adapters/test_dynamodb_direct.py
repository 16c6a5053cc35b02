"""An event's calls reach DynamoDB without boto3, and by boto3 whenever that is not a success at once."""

from __future__ import annotations

import base64
import json
import os
import random
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from threading import Barrier
from typing import Any

import boto3
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

from mirrorless.adapters.dynamodb.client import MARGIN_SECONDS, tries
from mirrorless.adapters.dynamodb.direct import direct_client, line_of_environment
from mirrorless.flow.rate_limit import READERS, in_parallel

KEYS = Credentials("AKIDEXAMPLE", "secret", "token")
REQUEST: dict[str, Any] = {"TableName": "map", "Item": {"slice": {"S": "ü"}, "links": {"B": b"\x00\xff"}}}
HANG_UP, SILENCE = 0, -1
"""Instead of a status: the connection is closed, or nothing comes."""
ANSWER: dict[str, Any] = {"Attributes": {"slice": {"S": "ü"}}}


@dataclass(frozen=True)
class Request:
    """One request as it came."""

    headers: dict[str, str]
    body: bytes
    connection: tuple[str, int]

    @property
    def by_boto3(self) -> bool:
        """boto3 numbers its tries."""
        return "amz-sdk-request" in self.headers


@dataclass
class Server:
    """Answers like DynamoDB, in turns: status, body, headers; the last answer for ever."""

    endpoint: str = ""
    requests: list[Request] = field(default_factory=list)
    answers: list[tuple[int, bytes, dict[str, str]]] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)
    """The test is over."""
    together: Barrier = field(default_factory=lambda: Barrier(1))
    """As many requests are answered at the same time."""
    patience: float = 30.0
    """Seconds that its clients wait for an answer."""

    def client(self, *, direct: bool = True) -> Any:
        """A client of this server."""
        made = boto3.client(
            "dynamodb",
            endpoint_url=self.endpoint,
            region_name="eu-west-1",
            aws_access_key_id=KEYS.access_key,
            aws_secret_access_key=KEYS.secret_key,
            aws_session_token=KEYS.token,
            config=Config(read_timeout=self.patience, retries={"mode": "standard", "total_max_attempts": 1}),
        )
        return direct_client(made, KEYS) if direct else made

    def will_answer(self, status: int, body: Any, **headers: str) -> None:
        """Once, or for ever where nothing comes after it."""
        self.answers.append((status, json.dumps(body).encode(), {k.replace("_", "-"): v for k, v in headers.items()}))


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            made.requests.append(Request({k.lower(): v for k, v in self.headers.items()}, body, self.client_address))
            made.together.wait(30)
            status, answer, headers = made.answers.pop(0) if len(made.answers) > 1 else made.answers[0]
            if status in (HANG_UP, SILENCE):
                if status == SILENCE:
                    made.over.wait(30)
                self.close_connection = True
                return
            self.send_response(status)
            for name, value in {"Content-Length": str(len(answer)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer)
            self.close_connection = headers.get("Connection") == "close"

        def log_message(self, *_: Any) -> None:
            """Nothing: requests are kept in `requests`."""

    class Listener(ThreadingHTTPServer):
        request_queue_size = 2 * READERS  # connections beyond the default five at once would wait a second

    http = Listener(("127.0.0.1", 0), Handler)
    made.endpoint = f"http://127.0.0.1:{http.server_port}"
    thread = threading.Thread(target=http.serve_forever, args=(0.02,))
    thread.start()
    yield made
    made.over.set()
    http.shutdown()
    thread.join()
    http.server_close()


def test_a_call_that_succeeds_is_answered_without_boto3_and_as_boto3_would(server: Server) -> None:
    server.will_answer(200, ANSWER)
    assert server.client().put_item(**REQUEST) == ANSWER
    (request,) = server.requests
    assert not request.by_boto3
    found = server.client(direct=False).put_item(**REQUEST)
    del found["ResponseMetadata"]
    assert found == ANSWER
    by_boto3 = server.requests[1]
    assert by_boto3.by_boto3
    assert json.loads(request.body) == json.loads(by_boto3.body)
    same = ("x-amz-target", "content-type", "host", "x-amz-security-token")
    assert {name: request.headers[name] for name in same} == {name: by_boto3.headers[name] for name in same}
    assert request.headers["user-agent"].split(" m/")[0] == by_boto3.headers["user-agent"].split(" m/")[0]


def test_what_arrives_carries_the_signature_of_what_arrived(server: Server) -> None:
    server.will_answer(200, ANSWER)
    server.client().put_item(**REQUEST)
    (request,) = server.requests
    given = request.headers["authorization"]
    covered = given.partition("SignedHeaders=")[2].partition(",")[0].split(";")
    assert {"host", "x-amz-date", "x-amz-security-token", "x-amz-target"} <= set(covered)
    again = AWSRequest("POST", server.endpoint + "/", data=request.body)
    for name in set(covered) - {"host"}:
        again.headers[name] = request.headers[name]
    assert request.headers["host"] == server.endpoint.removeprefix("http://")
    again.context["timestamp"] = request.headers["x-amz-date"]
    signer = SigV4Auth(KEYS, "dynamodb", "eu-west-1")
    text = signer.string_to_sign(again, signer.canonical_request(again))
    assert given.endswith("Signature=" + signer.signature(text, again))


def test_a_connection_that_the_server_closed_is_opened_again_and_boto3_is_not_needed(server: Server) -> None:
    server.will_answer(200, ANSWER, Connection="keep-alive")
    server.will_answer(200, ANSWER)
    client = server.client()
    client.put_item(**REQUEST)
    client._line._spare[0].sock.shutdown(0)  # as if the server's end had come in the meantime
    assert client.put_item(**REQUEST) == ANSWER
    assert len({each.connection for each in server.requests}) == 2
    assert not any(each.by_boto3 for each in server.requests)


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (500, {}),
        (400, {}),
        (HANG_UP, {}),
        (SILENCE, {}),
        (200, {"x_amz_crc32": "1"}),
        (200, {"Content_Length": "1000", "Connection": "close"}),
        (200, {"Content_Length": "unknown", "Connection": "close"}),
    ],
    ids=[
        "a server's error",
        "refused",
        "hung up",
        "no answer in time",
        "an answer that was damaged",
        "an answer that was cut short",
        "an answer without a length",
    ],
)
def test_what_is_no_success_is_called_again_by_boto3_and_the_next_call_is_tried_directly_again(
    server: Server, status: int, headers: dict[str, str]
) -> None:
    server.will_answer(status, ANSWER, **headers)
    server.will_answer(200, ANSWER)
    server.patience = 0.5
    client = server.client()
    for _ in range(2):
        assert client.put_item(**REQUEST)["Attributes"] == ANSWER["Attributes"]
    assert [each.by_boto3 for each in server.requests] == [False, True, False]


def test_an_error_that_stays_is_raised_by_boto3_under_its_name(server: Server) -> None:
    server.will_answer(400, {"__type": "com.amazonaws.dynamodb.v20120810#AccessDeniedException", "message": "no"})
    with pytest.raises(ClientError) as failed:
        server.client().put_item(**REQUEST)
    assert failed.value.response["Error"]["Code"] == "AccessDeniedException"


@pytest.mark.parametrize("direct", [True, False])
def test_a_condition_that_does_not_hold_is_answered_with_what_stands_there(server: Server, *, direct: bool) -> None:
    """boto3 is not called again for it: the insert would be paid twice."""
    kind = "com.amazonaws.dynamodb.v20120810#ConditionalCheckFailedException"
    standing = {"slice": {"S": "ü"}, "links": {"B": base64.b64encode(b"\x00\xff").decode()}}
    server.will_answer(400, {"__type": kind, "message": "The conditional request failed", "Item": standing})

    with pytest.raises(ClientError) as failed:
        server.client(direct=direct).put_item(**REQUEST, ReturnValuesOnConditionCheckFailure="ALL_OLD")

    assert failed.value.response["Error"]["Code"] == "ConditionalCheckFailedException"
    assert failed.value.response["Item"] == {"slice": {"S": "ü"}, "links": {"B": b"\x00\xff"}}
    assert [each.by_boto3 for each in server.requests] == [not direct]


def test_other_calls_are_left_to_boto3(server: Server) -> None:
    server.will_answer(200, {"TableNames": []})
    server.client().list_tables()
    assert [each.by_boto3 for each in server.requests] == [True]


def test_an_answer_with_the_right_checksum_is_taken(server: Server) -> None:
    server.will_answer(200, ANSWER, x_amz_crc32=str(zlib.crc32(json.dumps(ANSWER).encode())))
    assert server.client().put_item(**REQUEST) == ANSWER


def test_bytes_come_back_as_bytes_at_any_depth(server: Server) -> None:
    stored = base64.b64encode(b"\x00\xff").decode()
    items = [{"spans": {"B": stored}, "kind": {"S": "run"}, "B": {"S": "text"}, "deep": {"M": {"x": {"B": stored}}}}]
    server.will_answer(200, {"Items": items, "Count": 1})
    raw = b"\x00\xff"
    deep = {"M": {"x": {"B": raw}}}
    (item,) = server.client().query(TableName="map")["Items"]
    assert item == {"spans": {"B": raw}, "kind": {"S": "run"}, "B": {"S": "text"}, "deep": deep}


def test_without_credentials_and_behind_a_proxy_everything_is_boto3s(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.will_answer(200, ANSWER)
    client = direct_client(server.client(direct=False), None)
    client.put_item(**REQUEST)
    monkeypatch.setenv("HTTP_PROXY", server.endpoint)
    monkeypatch.setenv("NO_PROXY", "")
    server.client().put_item(**REQUEST)
    assert [each.by_boto3 for each in server.requests] == [True, True]


def test_calls_at_the_same_time_have_a_connection_each_and_those_are_kept(server: Server) -> None:
    """The journals of a transaction are written at the same time; none of them waits, and none goes by boto3."""
    server.will_answer(200, ANSWER)
    server.together = Barrier(READERS)
    client = server.client()

    for _ in range(2):
        in_parallel(lambda _: client.put_item(**REQUEST), list(range(READERS)))

    assert [each.by_boto3 for each in server.requests] == [False] * 2 * READERS
    assert len({each.connection for each in server.requests}) == READERS


FUNCTION = {
    "AWS_LAMBDA_RUNTIME_API": "127.0.0.1:9001",
    "AWS_REGION": "eu-west-1",
    "AWS_DEFAULT_REGION": "eu-west-1",
    "AWS_ACCESS_KEY_ID": KEYS.access_key,
    "AWS_SECRET_ACCESS_KEY": KEYS.secret_key,
    "AWS_SESSION_TOKEN": KEYS.token,
}
"""Variables of every Lambda function."""


@pytest.fixture
def function(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The variables of a function, and no others of AWS."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in FUNCTION.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


_IN_A_FUNCTION = """
import sys
from mirrorless.adapters.dynamodb.client import dynamodb_client
client = dynamodb_client("eu-west-1", "", direct=True)
for _ in range(2):
    print(client.query(TableName="map"), "boto3" in sys.modules)
"""


@pytest.mark.usefixtures("function")
@pytest.mark.parametrize(("first", "by_boto3"), [(200, [False, False]), (500, [False, True, False])])
def test_a_function_imports_boto3_once_a_call_has_failed(server: Server, first: int, by_boto3: list[bool]) -> None:
    """Importing it and making its client is a third of a cold start."""
    server.will_answer(first, {"Items": []})
    server.will_answer(200, {"Items": []})

    done = subprocess.run(
        [sys.executable, "-c", _IN_A_FUNCTION],
        env={**os.environ, "AWS_ENDPOINT_URL_DYNAMODB": server.endpoint},
        capture_output=True,
        text=True,
        check=True,
    )

    assert [line.endswith("True") for line in done.stdout.splitlines()] == [any(by_boto3)] * 2
    assert [each.by_boto3 for each in server.requests] == by_boto3
    assert all("AKIDEXAMPLE/" in each.headers["authorization"] for each in server.requests)
    assert all(each.headers["x-amz-security-token"] == KEYS.token for each in server.requests)


@pytest.mark.usefixtures("function")
def test_a_function_finds_the_endpoint_that_boto3_finds() -> None:
    session = boto3.Session()
    found = 0
    for partition in session.get_available_partitions():
        for region in session.get_available_regions("dynamodb", partition):
            line = line_of_environment(region, 1)
            if line is not None:
                assert f"https://{line._host}" == session.client("dynamodb", region).meta.endpoint_url
                found += 1
    assert found >= 30
    assert line_of_environment("cn-north-1", 1) is None


@pytest.mark.parametrize(
    ("endpoint", "host"),
    [
        ("https://vpce-1.dynamodb.eu-west-1.vpce.amazonaws.com:443", "vpce-1.dynamodb.eu-west-1.vpce.amazonaws.com"),
        ("http://localhost:80/", "localhost"),
        ("http://localhost:8080", "localhost:8080"),
    ],
)
def test_the_host_is_signed_as_it_is_sent_without_the_schemes_own_port(
    function: pytest.MonkeyPatch, endpoint: str, host: str
) -> None:
    function.setenv("AWS_ENDPOINT_URL_DYNAMODB", endpoint)
    line = line_of_environment("eu-west-1", 1)
    assert line is not None
    assert line._host == host


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("AWS_LAMBDA_RUNTIME_API", None),  # outside of Lambda
        ("AWS_ACCOUNT_ID", "123456789012"),
        ("AWS_CONFIG_FILE", "/opt/config"),
        ("AWS_CREDENTIAL_EXPIRATION", "2030-01-01T00:00:00Z"),
        ("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true"),
        ("AWS_PROFILE", "other"),
        ("AWS_USE_DUALSTACK_ENDPOINT", "true"),
        ("AWS_USE_FIPS_ENDPOINT", "true"),
        ("AWS_ACCESS_KEY_ID", ""),
        ("AWS_SECRET_ACCESS_KEY", ""),
        ("HTTPS_PROXY", "http://proxy.example.com:3128"),
    ],
)
def test_what_changes_endpoint_or_credentials_is_left_to_boto3(
    function: pytest.MonkeyPatch, variable: str, value: str | None
) -> None:
    assert line_of_environment("eu-west-1", 1) is not None

    if value is None:
        function.delenv(variable)
    else:
        function.setenv(variable, value)

    assert line_of_environment("eu-west-1", 1) is None


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that were made, each as long as it may be; the clock moves by nothing else."""
    made: list[float] = []
    monkeypatch.setattr(time, "sleep", made.append)
    monkeypatch.setattr(time, "monotonic", lambda: 1_000.0 + sum(made))
    monkeypatch.setattr(random, "uniform", lambda _, longest: longest)
    return made


def test_the_first_try_needs_no_pause_and_the_pauses_double_up_to_two_seconds(pauses: list[float]) -> None:
    attempts = tries(None)
    next(attempts)
    assert pauses == []

    list(islice(attempts, 8))

    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]


def test_a_pause_is_any_time_up_to_its_longest(pauses: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """Environments that were throttled together must not come again together."""
    monkeypatch.setattr(random, "uniform", lambda least, longest: least + longest / 4)

    list(islice(tries(None), 4))

    assert pauses == [0.0125, 0.025, 0.05]


@pytest.mark.parametrize("left", [0.0, MARGIN_SECONDS])
def test_there_is_one_try_however_late_it_is(pauses: list[float], left: float) -> None:
    assert len(list(tries(lambda: left))) == 1
    assert pauses == []


@pytest.mark.parametrize(
    ("left", "seconds", "paused"), [(2.0, None, 2.0 - MARGIN_SECONDS), (60.0, 5.0, 5.0)], ids=["margin", "no longer"]
)
def test_the_last_try_leaves_a_margin_of_the_deadline_and_a_later_one_makes_it_no_longer(
    pauses: list[float], left: float, seconds: float | None, paused: float
) -> None:
    list(tries(lambda: left - sum(pauses), **({} if seconds is None else {"seconds": seconds})))

    assert sum(pauses) == pytest.approx(paused)
