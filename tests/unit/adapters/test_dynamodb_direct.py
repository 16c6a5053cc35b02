"""An event's calls reach DynamoDB without boto3, and by boto3 whenever that is not a success at once."""

from __future__ import annotations

import base64
import json
import threading
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import boto3
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

from mirrorless.adapters.dynamodb.direct import direct_client

KEYS = Credentials("AKIDEXAMPLE", "secret", "token")
REQUEST: dict[str, Any] = {"Statements": [{"Statement": "DELETE", "Parameters": [{"B": b"\x00\xff"}, {"S": "ü"}]}]}
HANG_UP, SILENCE = 0, -1
"""Instead of a status: the connection is closed, or nothing comes."""
ANSWER: dict[str, Any] = {"Responses": [{"TableName": "map"}]}


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

    def client(self, *, direct: bool = True) -> Any:
        """A client of this server."""
        made = boto3.client(
            "dynamodb",
            endpoint_url=self.endpoint,
            region_name="eu-west-1",
            aws_access_key_id=KEYS.access_key,
            aws_secret_access_key=KEYS.secret_key,
            aws_session_token=KEYS.token,
            config=Config(read_timeout=0.5, retries={"mode": "standard", "total_max_attempts": 1}),
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

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
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
    assert server.client().batch_execute_statement(**REQUEST) == ANSWER
    (request,) = server.requests
    assert not request.by_boto3
    found = server.client(direct=False).batch_execute_statement(**REQUEST)
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
    server.client().batch_execute_statement(**REQUEST)
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


def test_one_connection_serves_every_call(server: Server) -> None:
    server.will_answer(200, ANSWER)
    client = server.client()
    for _ in range(3):
        client.batch_execute_statement(**REQUEST)
    assert len({each.connection for each in server.requests}) == 1


def test_a_connection_that_the_server_closed_is_opened_again_and_boto3_is_not_needed(server: Server) -> None:
    server.will_answer(200, ANSWER, Connection="keep-alive")
    server.will_answer(200, ANSWER)
    client = server.client()
    client.batch_execute_statement(**REQUEST)
    client._line._connection.sock.shutdown(0)  # as if the server's end had come in the meantime
    assert client.batch_execute_statement(**REQUEST) == ANSWER
    assert len({each.connection for each in server.requests}) == 2
    assert not any(each.by_boto3 for each in server.requests)


@pytest.mark.parametrize(
    ("status", "headers"),
    [(500, {}), (400, {}), (HANG_UP, {}), (SILENCE, {}), (200, {"x_amz_crc32": "1"})],
    ids=["a server's error", "refused", "hung up", "no answer in time", "an answer that was damaged"],
)
def test_what_is_no_success_is_called_again_by_boto3_and_the_next_call_is_tried_directly_again(
    server: Server, status: int, headers: dict[str, str]
) -> None:
    server.will_answer(status, ANSWER, **headers)
    server.will_answer(200, ANSWER)
    client = server.client()
    for _ in range(2):
        assert client.batch_execute_statement(**REQUEST)["Responses"] == ANSWER["Responses"]
    assert [each.by_boto3 for each in server.requests] == [False, True, False]


def test_an_error_that_stays_is_raised_by_boto3_under_its_name(server: Server) -> None:
    server.will_answer(400, {"__type": "com.amazonaws.dynamodb.v20120810#AccessDeniedException", "message": "no"})
    with pytest.raises(ClientError) as failed:
        server.client().batch_execute_statement(**REQUEST)
    assert failed.value.response["Error"]["Code"] == "AccessDeniedException"


def test_other_calls_are_left_to_boto3(server: Server) -> None:
    server.will_answer(200, {"TableNames": []})
    server.client().list_tables()
    assert [each.by_boto3 for each in server.requests] == [True]


def test_an_answer_with_the_right_checksum_is_taken(server: Server) -> None:
    server.will_answer(200, ANSWER, x_amz_crc32=str(zlib.crc32(json.dumps(ANSWER).encode())))
    assert server.client().batch_execute_statement(**REQUEST) == ANSWER


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
    client.batch_execute_statement(**REQUEST)
    monkeypatch.setenv("HTTP_PROXY", server.endpoint)
    monkeypatch.setenv("NO_PROXY", "")
    server.client().batch_execute_statement(**REQUEST)
    assert [each.by_boto3 for each in server.requests] == [True, True]


def test_a_thread_that_finds_the_line_busy_calls_boto3(server: Server) -> None:
    server.will_answer(200, ANSWER)
    client = server.client()
    with client._line._free:
        client.batch_execute_statement(**REQUEST)
    assert [each.by_boto3 for each in server.requests] == [True]
