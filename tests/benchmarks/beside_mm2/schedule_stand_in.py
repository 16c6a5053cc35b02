"""AWS's part for a flow of scheduled topics in a process of its own: its schedule and its function.

    python -m tests.benchmarks.beside_mm2.schedule_stand_in request.json

The function is the bundle that is deployed, under the real runtime client. A run that ends is followed by the next one
at once, where AWS's schedule would start one within the minute. SIGUSR1 starts a second run beside the one under way,
again and again until it takes over, as the schedule does in the last of a run's time. What the runs return is in
`runs.jsonl`, a line each. It goes on until SIGTERM.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from infra.packaging import bundle
from lab.functions.function import LambdaFunction
from mirrorless.config.flow import Flow
from mirrorless.config.loading import load
from mirrorless.naming import PULL

READY = "ready"
RUNS = "runs.jsonl"
AGAIN_S = 1.0
"""Between two starts of a run that finds the shard held."""


class ScheduleRequest(msgspec.Struct, frozen=True):
    """What to run."""

    configuration: str
    """Path of the configuration, with one flow."""
    source: str
    target: str
    """Addresses of the clusters, by their aliases' names here."""
    source_alias: str
    dynamodb: str
    """Endpoint."""
    folder: str
    timeout_seconds: float
    """Of a run."""


@dataclass(slots=True)
class RunAfterRun:
    """Starts runs of one shard, so that one is under way at any moment."""

    function: LambdaFunction
    event: bytes
    log: Path
    over: threading.Event = field(default_factory=threading.Event)
    _under_way: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self, *, successor: bool = False) -> None:
        """Start a run; a successor is started anew until it has the shard."""
        with self._lock:
            self._under_way += 1
        threading.Thread(target=self._go_on, args=(successor,), daemon=True).start()

    def _go_on(self, successor: bool) -> None:  # noqa: FBT001 -- a thread's argument
        while not self.over.is_set():
            outcome = self.function.invoke(self.event)
            with self._lock, self.log.open("a") as log:
                log.write(json.dumps({"status": outcome.status, "payload": outcome.payload.decode()}) + "\n")
                held = outcome.status == "success" and json.loads(outcome.payload)["ended"] == "held"
                if self._under_way > 1 and not (held and successor):
                    self._under_way -= 1
                    return
            if held or outcome.status != "success":
                self.over.wait(AGAIN_S)


def main() -> int:
    """Start, say that it is ready, wait for SIGTERM."""
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    request = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=ScheduleRequest)
    folder = Path(request.folder)
    addresses = {request.source_alias: request.source, "target": request.target}
    (flow,) = load(Path(request.configuration)).with_clusters_at(addresses).enabled_flows
    function = reader(flow, request, folder)
    event: dict[str, Any] = flow.pull_settings(0)
    runs = RunAfterRun(function, json.dumps(event).encode(), folder / RUNS, over)
    signal.signal(signal.SIGUSR1, lambda *_: runs.start(successor=True))
    try:
        function.initialise()
        runs.start()
        (folder / READY).touch()
        over.wait()
    finally:
        function.stop()
    return 0


def reader(flow: Flow, request: ScheduleRequest, folder: Path) -> LambdaFunction:
    """The flow's function that reads scheduled topics, with the variables that the deployment gives it."""
    return LambdaFunction(
        name=flow.resource_name(PULL),
        bundle=bundle.build(PULL),
        handler=f"{PULL}.handler",
        variables={"AWS_ENDPOINT_URL_DYNAMODB": request.dynamodb},
        timeout_seconds=request.timeout_seconds,
        memory_mb=flow.settings.schedule.memory_mb,
        folder=folder / "functions",
    )


if __name__ == "__main__":
    sys.exit(main())
