"""An execution environment: one process under the real runtime interface client, frozen between invocations.

It is started, frozen (SIGSTOP) when it requests its next event, thawed (SIGCONT) for one, killed at a deadline or
beyond its memory, and its death is noticed at once. Which environment gets an event is decided by
`lab.functions.function`.
Linux only: it reads /proc and waits on a pidfd.

It talks to its process by the Lambda Runtime API over HTTP, on loopback: one server per environment, as in Lambda. The
server speaks HTTP/1.1 to the runtime interface client and nothing else; it does not judge what an answer means.
"""

from __future__ import annotations

import json
import os
import select
import signal
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TextIO

from infra.packaging import wheels
from lab.servers.http_server import HttpConnection, HttpServer
from lab.servers.process import ChildProcess, tail

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lab.functions.invocation import Status

MAX_EVENT = 6 * 1024 * 1024
"""Bytes of a synchronous invocation's event."""

MAX_RESPONSE = 6_291_556
"""Bytes of a response: the number that Lambda's own refusal names."""

_RUNTIME = "/2018-06-01/runtime/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One invocation as the runtime gets it.

    Attributes:
        request_id: Lambda's id of the invocation.
        body: UTF-8 JSON, at most `MAX_EVENT` bytes.
        deadline_ms: when the invocation times out, in milliseconds since 1970.
        arn: the invoked function's.
    """

    request_id: str
    body: bytes
    deadline_ms: int
    arn: str


class RuntimeApi(HttpServer):
    """The server for one environment."""

    def __init__(self, runtime: Environment) -> None:
        self.runtime = runtime
        super().__init__(_Call, name="runtime-api")


class _Call(HttpConnection):
    """The calls of the runtime interface client."""

    server: RuntimeApi

    def do_GET(self) -> None:  # noqa: N802 -- the server looks for this name
        """Hand over the next event; where there will be none, the connection has no further use."""
        if self.path != f"{_RUNTIME}invocation/next":
            self._refuse()
        elif (event := self.server.runtime.next_event()) is not None:
            self.answer(HTTPStatus.OK, event.body, _headers(event))
        else:
            self.close_connection = True

    def do_POST(self) -> None:  # noqa: N802 -- the server looks for this name
        """Take an answer or an error."""
        runtime, body = self.server.runtime, self.body()
        match self.path.removeprefix(_RUNTIME).split("/"):
            case ["invocation", request_id, "response"] if len(body) > MAX_RESPONSE:
                said = f"Exceeded maximum allowed payload size ({MAX_RESPONSE} bytes)."
                runtime.failed(request_id, _error("Function.ResponseSizeTooLarge", f"Response payload: {said}"))
                self.answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, _error("RequestEntityTooLarge", said))
            case ["invocation", request_id, "response"]:
                self._acknowledge(known=runtime.answered(request_id, body))
            case ["invocation", request_id, "error"]:
                self._acknowledge(known=runtime.failed(request_id, body))
            case ["init", "error"]:
                runtime.init_failed(body)
                self._acknowledge(known=True)
            case _:
                self._refuse()

    def _acknowledge(self, *, known: bool) -> None:
        """202, the only status that lets the runtime interface client live; 400 for an id it was not given."""
        if known:
            self.answer(HTTPStatus.ACCEPTED, b'{"status":"OK"}')
        else:
            self.answer(HTTPStatus.BAD_REQUEST, _error("InvalidRequestID", "Invalid request ID"))

    def _refuse(self) -> None:
        self.answer(HTTPStatus.NOT_FOUND, _error("NotFound", f"{self.command} {self.path} is not in the Runtime API"))


def _headers(event: Event) -> dict[str, str]:
    root = f"{int(event.deadline_ms / 1000):08x}-{event.request_id.replace('-', '')[:24]}"
    return {
        "Lambda-Runtime-Aws-Request-Id": event.request_id,
        "Lambda-Runtime-Deadline-Ms": str(event.deadline_ms),
        "Lambda-Runtime-Invoked-Function-Arn": event.arn,
        "Lambda-Runtime-Trace-Id": f"Root=1-{root};Parent=0000000000000001;Sampled=0",
    }


EnvironmentState = Literal["starting", "idle", "busy", "zombie", "dead"]
"""Zombie: its invocation timed out for the caller, and runs on."""

RUNTIME_LOCK = Path(__file__).parents[1] / "requirements-runtime.txt"
"""What the managed runtime keeps beside the function, in /var/runtime."""

_SAMPLE_SECONDS = 0.25
_PAGE = os.sysconf("SC_PAGE_SIZE")


class InvocationOutcome(NamedTuple):
    """How an invocation, or an environment's start, ended."""

    status: Status
    payload: bytes


def runtime_folder() -> Path:
    """The runtime interface client's folder for this interpreter, installed the first time.

    Raises:
        infra.packaging.wheels.BuildError: pip could not install it.
    """
    return wheels.install(RUNTIME_LOCK, python=wheels.running_python(), platform="local")


class Environment:
    """One process with its Runtime API. It starts at construction; all methods may be called from any thread.

    Memory is what the process holds apart from files (/proc/<pid>/statm, resident less shared), looked at four times a
    second while it works: an address-space limit would count the reserved stacks of the Kafka client's threads, and a
    shorter burst goes unnoticed.

    Attributes:
        state: what it does now.
        init_ms: from its start until it requested its first event; 0.0 before.
        log: its output, and what the lab did to it.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        variables: Mapping[str, str],
        folder: Path,
        log: Path,
        memory_mb: int,
        on_death: Callable[[Environment], None],
    ) -> None:
        """Start it.

        Args:
            argv: the interpreter and its arguments.
            variables: the whole environment, but for AWS_LAMBDA_RUNTIME_API.
            folder: its working directory, the bundle.
            log: where its output goes.
            memory_mb: above this it is killed.
            on_death: called once, from the watching thread.
        """
        self.state: EnvironmentState = "starting"
        self.init_ms = 0.0
        self.log = log
        self._memory_bytes = memory_mb * 1024 * 1024
        self._on_death = on_death
        self._changed = threading.Condition()
        self._claimed = True
        self._retired = False
        self._given: Event | None = None
        self._current = ""
        self._answer: InvocationOutcome | None = None
        self._started = time.monotonic()
        self._api = RuntimeApi(self)
        with self._changed:  # a fast child on a busy machine requests its first event before its process id is set
            self._process = ChildProcess.start(
                argv, log, env={**variables, "AWS_LAMBDA_RUNTIME_API": self._api.address}, cwd=folder
            )
        self._watcher = threading.Thread(target=self._watch, name=f"environment-{self.pid}", daemon=True)
        self._watcher.start()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    # What a function does with it

    def claim(self) -> bool:
        """Take it for one invocation; False when it is not idle, or has just died."""
        with self._changed:
            if self.state != "idle" or self._claimed or not self._process.alive:
                return False
            self._claimed = True
            return True

    def release(self) -> None:
        """Give it back after an invocation."""
        with self._changed:
            self._claimed = False
            retired = self._retired
        if retired:
            self.kill()

    def retire(self) -> None:
        """End it as soon as it is unused: at once when it is idle."""
        with self._changed:
            self._retired = True
            used = self._claimed
        if not used:
            self.kill()

    def kill(self) -> None:
        """SIGKILL; returns when it is gone and its death has been handled."""
        self._process.kill()
        if threading.current_thread() is not self._watcher:
            self._watcher.join()

    def await_ready(self, seconds: float) -> InvocationOutcome | None:
        """Wait until it requests its first event; None when it did, otherwise what the caller gets instead.

        Lambda gives a start ten seconds of its own, and starts once more inside the invocation's timeout when that was
        too short. We give one start both.
        """
        with self._changed:
            if self._changed.wait_for(lambda: self.state != "starting", seconds) and self.state != "dead":
                return None
            dead = self.state == "dead"
        if dead:
            return self._answer or self._exit()
        self.kill()
        return self._timed_out("", seconds)

    def run(self, event: Event, seconds: float, *, zombies: bool) -> InvocationOutcome:
        """Hand over one event and wait for the outcome. The caller has claimed the environment, and releases it.

        Args:
            event: the invocation.
            seconds: until the deadline, when the process is killed.
            zombies: leave it running at the deadline instead; its answer is then ignored, and it ends after that.
        """
        with self._changed:
            self._answer, self._given, self._current = None, event, event.request_id
            self.state = "busy" if self.state == "idle" else self.state
            self._process.signal(signal.SIGCONT)
            self._changed.notify_all()
            # It is free again when it requests the next event; an answer alone leaves the client's last lines to run.
            ended = self._changed.wait_for(lambda: self.state in {"idle", "dead"}, seconds)
            answer = self._answer
            if not ended and zombies and answer is None:
                self.state = "zombie"
                return self._timed_out(event.request_id, seconds)
        if not ended:
            self.kill()
        if answer is not None:
            return answer
        return self._exit() if ended else self._timed_out(event.request_id, seconds)

    # What the runtime interface client does with it, from the server's threads

    def next_event(self) -> Event | None:
        """Freeze until there is an event, None if there will be no other. A zombie that came to its end is killed."""
        with self._changed:
            zombie = self.state == "zombie"
            if self.state == "starting":
                self.init_ms = (time.monotonic() - self._started) * 1000
            if self.state in {"starting", "busy"}:
                self._process.signal(signal.SIGSTOP)
                self.state = "idle"
                self._changed.notify_all()
            if not zombie:
                self._changed.wait_for(lambda: self._given is not None or self.state == "dead")
            event, self._given = self._given, None
        if zombie:
            self.kill()
        return event

    def answered(self, request_id: str, body: bytes) -> bool:
        """Keep the answer, False if it is of another invocation; a zombie's is taken from it and dropped."""
        return self._keep(request_id, InvocationOutcome("success", body))

    def failed(self, request_id: str, body: bytes) -> bool:
        """Keep the error; a zombie's is taken from it and dropped."""
        return self._keep(request_id, InvocationOutcome("function_error", body))

    def init_failed(self, body: bytes) -> None:
        """Keep what the import said; the client exits after it."""
        self._answer = InvocationOutcome("function_error", body)

    def _keep(self, request_id: str, outcome: InvocationOutcome) -> bool:
        with self._changed:
            if request_id != self._current:
                return False
            if self.state == "busy":
                self._answer = outcome
            return True

    # What happens to it

    def _watch(self) -> None:
        pidfd = os.pidfd_open(self.pid)
        try:
            death = select.poll()
            death.register(pidfd, select.POLLIN)
            while not death.poll(_SAMPLE_SECONDS * 1000):
                if self.state != "idle" and self._memory() > self._memory_bytes:
                    self._note(f"Memory size exceeded: {self._memory_bytes // 2**20} MB")
                    self._process.kill()
        finally:
            os.close(pidfd)
        self._process.wait()
        with self._changed:
            self.state = "dead"
            self._changed.notify_all()
        self._api.close()
        self._on_death(self)

    def _memory(self) -> int:
        try:
            with Path(f"/proc/{self.pid}/statm").open() as statm:
                return own_bytes(statm)
        except FileNotFoundError:
            return 0  # it died since we looked

    def _exit(self) -> InvocationOutcome:
        code = self._process.wait()
        reason = f"exit status {code}" if code >= 0 else f"signal: {_signal_words(-code)}"
        text = f"RequestId: {self._current} Error: Runtime exited with error: {reason}"
        self._note(text)
        return InvocationOutcome("exited", _error("Runtime.ExitError", text))

    def _timed_out(self, request_id: str, seconds: float) -> InvocationOutcome:
        text = f"RequestId: {request_id} Error: Task timed out after {seconds:.2f} seconds"
        self._note(text)
        return InvocationOutcome("timeout", _error("Sandbox.Timedout", text))

    def _note(self, text: str) -> None:
        with self.log.open("a") as log:
            log.write(f"{datetime.now(UTC).isoformat(timespec='milliseconds')} {text}\n")

    def log_tail(self) -> str:
        """Its last lines, for an error that reports its death."""
        return tail(self.log)


def own_bytes(statm: TextIO) -> int:
    """The memory of a process that no other one shares, from its open `/proc/PID/statm`; 0 once it has ended."""
    try:
        _, resident, shared, *_ = statm.read().split()
    except ProcessLookupError:
        return 0
    return (int(resident) - int(shared)) * _PAGE


def _signal_words(number: int) -> str:
    # As Go, in which Lambda is written, says it: "killed", "segmentation fault".
    return (signal.strsignal(number) or str(number)).lower()


def _error(kind: str, text: str) -> bytes:
    return json.dumps({"errorType": kind, "errorMessage": text}).encode()
