"""A gate before the lab's DynamoDB and Lambda API that enforces a function's IAM role.

One gate for each function, so that the caller is certain. It answers a forbidden call as AWS does (403 and
AccessDeniedException), passes everything else on unchanged, and remembers both. What passes is recorded.
"""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.support import aws_recorder
from tests.support.aws_recorder import dynamodb_calls, kind_of
from tests.support.iam import allowed

MAPPINGS = "/2015-03-31/event-source-mappings"
TAGS = "/2017-03-31/tags"


@dataclass(kw_only=True)
class Gate:
    """The way of one function to one service.

    Attributes:
        part: the function, as `infra.iam.Part` names it.
        statements: what the function's role says.
        upstream: the service's endpoint, `http://127.0.0.1:port`.
        arn_prefix: of the service's resources, up to `table/` or `event-source-mapping:`.
        function_arn: of a function by its name with its alias, or of what a mapping calls by the mapping's UUID.
        passed: actions that were allowed.
        refused: actions and resources that were not.
    """

    part: str
    statements: Sequence[Mapping[str, Any]]
    upstream: str
    arn_prefix: str
    function_arn: Callable[[str], str] = str
    passed: set[str] = field(default_factory=set)
    refused: list[str] = field(default_factory=list)
    _server: ThreadingHTTPServer | None = None

    @property
    def endpoint(self) -> str:
        """Where the function calls."""
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def start(self) -> None:
        """Open it."""
        self._server = _Door(self)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), name="gate", daemon=True).start()

    def stop(self) -> None:
        """Close it."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def judge(self, method: str, path: str, target: str, body: bytes) -> str:
        """What is wrong with a call; empty when it is allowed."""
        for action, resource, context in self._asked(method, path, target, body):
            if not allowed(self.statements, action, resource, context):
                self.refused.append(f"{action} on {resource}")
                return f"not authorized to perform: {action} on resource: {resource}"
            self.passed.add(action)
            table = kind_of(resource.rpartition("/")[2]) if action.startswith("dynamodb:") else ""
            aws_recorder.note(self.part, (action, table))
        return ""

    def _asked(self, method: str, path: str, target: str, body: bytes) -> list[tuple[str, str, dict[str, str]]]:
        if target.startswith("DynamoDB"):
            return [(action, f"{self.arn_prefix}{table}", {}) for action, table in dynamodb_calls(target, body)]
        place = urlsplit(path).path.rstrip("/")
        request = json.loads(body) if body else {}
        if place == MAPPINGS:
            action = {"GET": "lambda:ListEventSourceMappings", "POST": "lambda:CreateEventSourceMapping"}[method]
            context = {"lambda:FunctionArn": self.function_arn(request["FunctionName"])} if request else {}
            return [(action, "*", context)]
        uuid = unquote(place).rpartition(":")[2].rpartition("/")[2]
        if place.startswith(MAPPINGS):
            verb = {"GET": "Get", "PUT": "Update", "DELETE": "Delete"}[method]
            context = {"lambda:FunctionArn": self.function_arn(uuid)}
            return [(f"lambda:{verb}EventSourceMapping", f"{self.arn_prefix}{uuid}", context)]
        action = {"GET": "ListTags", "POST": "TagResource", "DELETE": "UntagResource"}[method]
        return [(f"lambda:{action}", f"{self.arn_prefix}{uuid}", {})]


class _Door(ThreadingHTTPServer):
    """A thread for each connection; none of them outlives the process."""

    daemon_threads = True

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        super().__init__(("127.0.0.1", 0), _Connection)


class _Connection(BaseHTTPRequestHandler):
    """One connection of a function."""

    server: _Door
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        gate = self.server.gate
        if trouble := gate.judge(self.command, self.path, self.headers.get("X-Amz-Target", ""), body):
            said = {"__type": "com.amazon.coral.service#AccessDeniedException", "Message": trouble}
            self._answer(HTTPStatus.FORBIDDEN, {"x-amzn-errortype": "AccessDeniedException"}, json.dumps(said).encode())
            return
        address = urlsplit(gate.upstream)
        connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=30)
        try:
            connection.request(self.command, self.path, body, dict(self.headers.items()))
            answer = connection.getresponse()
            kept = {name: value for name, value in answer.getheaders() if name.lower() not in _HOP_BY_HOP}
            self._answer(HTTPStatus(answer.status), kept, answer.read())
        except OSError as exc:
            self._answer(HTTPStatus.BAD_GATEWAY, {}, str(exc).encode())
        finally:
            connection.close()

    do_GET = do_POST = do_PUT = do_DELETE = _serve  # noqa: N815 -- the server looks for these names

    def _answer(self, status: HTTPStatus, headers: Mapping[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Write nothing: what was refused stands in the gate."""


_HOP_BY_HOP = {"connection", "content-length", "date", "server", "transfer-encoding"}
