"""AWS's part for a flow in a process of its own: what invokes its function, and the function.

    python -m tests.benchmarks.beside_mm2.stand_in request.json

One process, so that the poller's CPU (Amazon's, at AWS) is counted apart from the functions' (the operator's), and so
that no thread of it competes with those that measure. The function is the bundle that is deployed, under the real
runtime client. It runs until SIGTERM.

A mapped flow has the lab's event source mappings. While the folder has a file `hold`, they read and encode all that is
there, and invoke nothing; `polled` has how many records they have read, and is there for as long as they hold.

A scheduled flow has one run after the other, where AWS's schedule would start one within the minute. What the runs
return is in `runs.jsonl`, a line each.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import inf
from pathlib import Path

import msgspec

from infra.packaging import bundle
from lab.cloud import function_name
from lab.esm.behaviour import LabBehaviour
from lab.esm.mappings import EventSourceMappings
from lab.functions.function import LambdaFunction
from mirrorless.config.flow import Flow
from mirrorless.config.loading import load
from mirrorless.flow.naming import FLOW_VARIABLE, FORWARD_HANDLER, PARTIAL_RESPONSES_VARIABLE, PULL

READY, HOLD, POLLED, RUNS = "ready", "hold", "polled", "runs.jsonl"
LOOK_S = 0.02
"""Between two looks for `hold`."""
AGAIN_S = 1.0
"""Before another run, after one that failed."""
SESSION_TIMEOUT_S = 120.0
"""It is stopped (SIGSTOP) while others are measured; the cluster must not take that for its death."""
ENABLED_WITHIN_S = 60.0


class Request(msgspec.Struct, frozen=True):
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
    topics: tuple[str, ...]
    one_at_a_time: bool
    """Whether one event is under way, instead of as many as a mapping has."""
    timeout_seconds: float
    """Of a run of a scheduled flow."""


def main() -> int:
    """Start, say that it is ready, wait for SIGTERM."""
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    request = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Request)
    addresses = {request.source_alias: request.source, "target": request.target}
    (flow,) = load(Path(request.configuration)).with_clusters_at(addresses).enabled_flows
    (_run_after_run if request.timeout_seconds else _mapped)(flow, request, over)
    return 0


def _mapped(flow: Flow, request: Request, over: threading.Event) -> None:
    settings, folder, name = flow.settings.function, Path(request.folder), function_name(flow)
    function = LambdaFunction(
        name=name,
        bundle=bundle.build("forward"),
        handler=FORWARD_HANDLER,
        variables={
            FLOW_VARIABLE: flow.function_settings_json(),
            PARTIAL_RESPONSES_VARIABLE: str(flow.partial_responses).lower(),
            "AWS_ENDPOINT_URL_DYNAMODB": request.dynamodb,
        },
        timeout_seconds=settings.timeout_seconds,
        memory_mb=settings.memory_mb,
        concurrency=settings.reserved_concurrency or 100,
        folder=folder / "functions",
    )
    behaviour = LabBehaviour(session_timeout_s=SESSION_TIMEOUT_S, payloads_ahead=inf)
    mappings = EventSourceMappings(
        functions={name: function},
        folder=folder / "mappings",
        behaviour=replace(behaviour, concurrent_invocations=1) if request.one_at_a_time else behaviour,
    )
    try:
        function.initialise()
        made = [mappings.create(FunctionName=name, **flow.mapping_request(topic)) for topic in request.topics]
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda each: mappings.wait_enabled(each["UUID"], timeout_s=ENABLED_WITHIN_S), made))
        (folder / READY).touch()
        while not over.wait(LOOK_S):
            _hold_or_release(mappings, [each["UUID"] for each in made], folder)
    finally:
        mappings.stop()
        function.stop()


def _hold_or_release(mappings: EventSourceMappings, uuids: Sequence[str], folder: Path) -> None:
    polled = folder / POLLED
    if (folder / HOLD).exists():
        for uuid in uuids:
            mappings.hold(uuid)
        count = str(sum(mappings.metrics(uuid).get("Polled", 0) for uuid in uuids))
        if not polled.exists() or polled.read_text() != count:
            written = folder / f"{POLLED}.new"
            written.write_text(count)
            written.replace(polled)
    elif polled.exists():
        for uuid in uuids:
            mappings.release(uuid)
        polled.unlink()


def pull_function(flow: Flow, folder: Path, *, dynamodb: str, timeout_seconds: float) -> LambdaFunction:
    """A flow's function that reads scheduled topics, with the variables that the deployment gives it."""
    return LambdaFunction(
        name=flow.resource_name(PULL),
        bundle=bundle.build(PULL, own={} if flow.rules else None),
        handler=f"{PULL}.handler",
        variables={"AWS_ENDPOINT_URL_DYNAMODB": dynamodb},
        timeout_seconds=timeout_seconds,
        memory_mb=flow.settings.schedule.memory_mb,
        folder=folder / "functions",
    )


def _run_after_run(flow: Flow, request: Request, over: threading.Event) -> None:
    folder, event = Path(request.folder), msgspec.json.encode(flow.pull_settings(0))
    function = pull_function(flow, folder, dynamodb=request.dynamodb, timeout_seconds=request.timeout_seconds)

    def runs() -> None:
        while not over.is_set():
            outcome = function.invoke(event)
            with (folder / RUNS).open("a") as log:
                log.write(json.dumps({"status": outcome.status, "payload": outcome.payload.decode()}) + "\n")
            if outcome.status != "success":
                over.wait(AGAIN_S)

    try:
        function.initialise()
        threading.Thread(target=runs, daemon=True).start()
        (folder / READY).touch()
        over.wait()
    finally:
        function.stop()


if __name__ == "__main__":
    sys.exit(main())
