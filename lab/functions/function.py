"""A Lambda function in the lab: one process per concurrent execution environment, warm or cold.

This module decides which environment gets an event and when a new one starts. What an environment is stands in
`lab.functions.environment`, what it speaks in `lab.functions.environment`. Not imitated: a share of CPU by memory size,
and SnapStart.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from infra.packaging import wheels
from lab.functions.environment import MAX_EVENT, Environment, Event, runtime_folder
from lab.functions.invocation import Invocation
from mirrorless.errors import MirrorlessError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

REGION = "us-east-1"
ACCOUNT = "000000000000"

INIT_SECONDS = 10.0
"""What Lambda gives the start of an environment beside the invocation's own timeout."""


class FunctionError(MirrorlessError):
    """The function cannot be started. `where` names it; its log's tail is in the text."""


@dataclass(slots=True, kw_only=True, eq=False)
class LambdaFunction:
    """One deployed function; `lab.functions.invocation.Invoker`. All methods may be called from any thread.

    Nothing starts before the first event or `initialise()`.
    """

    name: str
    bundle: Path
    """The folder that is deployed (`infra.packaging.bundle.build`): its task root and working directory."""
    handler: str
    """`module.function`."""
    variables: Mapping[str, str]
    """Its own, of environments that start from now on."""
    timeout_seconds: float
    """An invocation's deadline."""
    folder: Path
    """Where its environments write their logs, one file each."""
    memory_mb: int = 1024
    """Beyond it an environment is killed; see `lab.functions.environment.Environment`."""
    concurrency: int = 10
    """Invocations at the same time; one more is throttled."""
    zombies: bool = False
    """Whether a timed-out invocation runs on in the background instead of being killed."""
    layers: Sequence[Path] = ()
    """Folders on the path behind the bundle."""
    python: str = str(Path(sys.base_prefix, "bin", f"python{wheels.running_python()}"))
    """The interpreter, without any virtual environment."""
    arn: str = field(init=False)
    """Made up."""
    cold_starts: int = 0
    """Environments started so far."""
    _path: Sequence[Path] = field(init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _environments: list[Environment] = field(default_factory=list)
    _in_flight: int = 0
    _stopped: bool = False

    def __post_init__(self) -> None:
        """Refuse the variables that Lambda reserves, by a ValueError."""
        self.arn = f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:{self.name}"
        self._path = [self.bundle, *self.layers, runtime_folder()]
        self.set_variables(self.variables)

    @property
    def environments(self) -> list[Environment]:
        """The environments that live now, oldest first."""
        with self._lock:
            return list(self._environments)

    def set_variables(self, variables: Mapping[str, str]) -> None:
        """Change the function's own variables, for environments that start from now on; see `recycle()`.

        Raises:
            ValueError: a variable is one that Lambda reserves.
        """
        if reserved := sorted(set(variables) & set(self._reserved())):
            raise ValueError(f"{self.name}: Lambda sets {', '.join(reserved)} itself; take it out of the variables")
        self.variables = dict(variables)

    def initialise(self) -> None:
        """Start one environment ahead of its first event, as Lambda's proactive initialization does, and wait for it.

        Raises:
            FunctionError: it did not come as far as requesting an event, or was stopped.
        """
        with self._lock:
            if self._stopped:
                raise FunctionError("it was stopped", where=self.name, hint="describe it anew")
            environment = self._start()
        if failure := environment.await_ready(INIT_SECONDS + self.timeout_seconds):
            said = f"{failure.payload.decode(errors='replace')}\n{environment.log_tail()}"
            raise FunctionError(f"it does not start: {said}", where=self.name, hint=f"read {environment.log}")
        environment.release()

    def invoke(self, event: bytes) -> Invocation:
        """Invoke with this event and wait for the outcome.

        A warm environment is taken where one is idle, the one used last first; otherwise a new one starts. Neither a
        failing function nor one that cannot start raises: that is an outcome.

        Raises:
            ValueError: the event is larger than Lambda takes (6 MB).
        """
        if len(event) > MAX_EVENT:
            raise ValueError(f"{self.name}: an event of {len(event)} bytes; Lambda takes {MAX_EVENT} at most")
        began = time.monotonic()
        request_id = str(uuid.uuid4())
        with self._lock:
            free = not self._stopped and self._in_flight < self.concurrency
            self._in_flight += free
            environment = self._warm_or_cold() if free else None
        if environment is None:
            refusal = {"Reason": "ConcurrentInvocationLimitExceeded", "Type": "User", "message": "Rate Exceeded."}
            return Invocation(
                status="throttled", payload=json.dumps(refusal).encode(), request_id=request_id, duration_ms=0.0
            )
        try:
            outcome = environment.await_ready(INIT_SECONDS + self.timeout_seconds)
            if outcome is None:
                deadline_ms = int((time.time() + self.timeout_seconds) * 1000)
                given = Event(request_id=request_id, body=event, deadline_ms=deadline_ms, arn=self.arn)
                outcome = environment.run(given, self.timeout_seconds, zombies=self.zombies)
        finally:
            with self._lock:
                self._in_flight -= 1
            environment.release()
        duration_ms = (time.monotonic() - began) * 1000
        return Invocation(
            status=outcome.status, payload=outcome.payload, request_id=request_id, duration_ms=duration_ms
        )

    def recycle(self) -> None:
        """Throw the environments away, as an update does: idle ones at once, busy ones after their invocation."""
        for environment in self.environments:
            environment.retire()

    def stop(self) -> None:
        """End every environment, zombies too; whoever still invokes is throttled. Returns when all are gone."""
        with self._lock:
            self._stopped = True
        for environment in self.environments:
            environment.kill()

    def _warm_or_cold(self) -> Environment:
        for environment in reversed(self._environments):
            if environment.claim():
                # Used last, hence first in the next search: the others may cool down.
                self._environments.remove(environment)
                self._environments.append(environment)
                return environment
        return self._start()

    def _start(self) -> Environment:
        self.cold_starts += 1
        stream = f"{datetime.now(UTC):%Y/%m/%d}/[$LATEST]{uuid.uuid4().hex}"
        environment = Environment(
            [self.python, "-S", "-s", "-m", "awslambdaric", self.handler],
            variables={**self._reserved(), **self.variables, "AWS_LAMBDA_LOG_STREAM_NAME": stream},
            folder=self.bundle,
            log=self.folder / f"{self.name}-{self.cold_starts:03}.log",
            memory_mb=self.memory_mb,
            on_death=self._forget,
        )
        self._environments.append(environment)
        return environment

    def _forget(self, environment: Environment) -> None:
        with self._lock:
            if environment in self._environments:
                self._environments.remove(environment)

    def _reserved(self) -> dict[str, str]:
        """What Lambda puts into every environment, with made-up credentials."""
        return {
            "_HANDLER": self.handler,
            "AWS_ACCESS_KEY_ID": "lab",
            "AWS_DEFAULT_REGION": REGION,
            "AWS_EXECUTION_ENV": f"AWS_Lambda_python{wheels.running_python()}",
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(self.memory_mb),
            "AWS_LAMBDA_FUNCTION_NAME": self.name,
            "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
            "AWS_LAMBDA_INITIALIZATION_TYPE": "on-demand",
            "AWS_LAMBDA_LOG_GROUP_NAME": f"/aws/lambda/{self.name}",
            "AWS_REGION": REGION,
            "AWS_SECRET_ACCESS_KEY": "lab",
            "AWS_SESSION_TOKEN": "lab",
            "LAMBDA_RUNTIME_DIR": str(self._path[-1]),
            "LAMBDA_TASK_ROOT": str(self.bundle),
            "LANG": "C.UTF-8",
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            # The task root cannot be written to in Lambda.
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": os.pathsep.join(map(str, self._path)),
            "TZ": ":UTC",
        }
