"""Variants of the forwarder side by side: the real bundle under the real runtime client.

    python -m tests.benchmarks forwarder stages=true tree=before=/tmp/before variables=arenas=MALLOC_ARENA_MAX=1

All of them get the same events in turn, from one broker and one table; what is compared is the CPU of the function's
process, all of its threads and the runtime client included, event by event. Ratios of neighbours in time mean something
on a busy machine; a single figure does not.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import msgspec

from lab.functions.function import LambdaFunction
from mirrorless.flow.naming import FLOW_VARIABLE, PROFILE_VARIABLE
from tests.benchmarks.ground import REPOSITORY, Ground, grounded
from tests.benchmarks.harness import Outcome

EVENT_BYTES = 6_000_000
MAX_RECORDS = 10_000
"""Of an event: what a mapping takes at most, in bytes and in number."""
WARM_UP = 4
OUTSIDE = "runtime client"
"""The stage of an event that the handler does not see."""
SHAPES: dict[str, tuple[int, ...]] = {
    "few": (100, 1, 10),
    "100Bx1": (100, 1),
    "100Bx6": (100, 6),
    "100Bx24": (100, 24),
    "1KBx1": (1_000, 1),
    "1KBx6": (1_000, 6),
    "10KBx1": (10_000, 1),
    "10KBx6": (10_000, 6),
}
"""Bytes of a value, lanes of an event, records at most: where it does not say, as many as a mapping gathers."""


class Events:
    """Events of one topic as large as a mapping makes them, offsets growing from event to event."""

    def __init__(self, topic: str, value: bytes, lanes: int, most: int = MAX_RECORDS) -> None:
        self._topic, self._lanes, self._next = topic, lanes, 0
        self._value = base64.b64encode(value).decode()
        one = len(json.dumps(self._record(0, 1_000_000)))
        self.records_per_lane = min(EVENT_BYTES // (one + 2), most) // lanes

    def _record(self, partition: int, offset: int) -> dict[str, Any]:
        return {
            "topic": self._topic,
            "partition": partition,
            "offset": offset,
            "timestamp": 1_700_000_000_000 + offset,
            "timestampType": "CREATE_TIME",
            "key": "a2V5LTAwMDAwMDAw",
            "value": self._value,
            "headers": [],
        }

    def following(self) -> bytes:
        """The next event."""
        first, self._next = self._next, self._next + self.records_per_lane
        lanes = {
            f"{self._topic}-{lane}": [self._record(lane, offset) for offset in range(first, self._next)]
            for lane in range(self._lanes)
        }
        event = {"eventSource": "SelfManagedKafka", "bootstrapServers": "127.0.0.1:9092", "records": lanes}
        return json.dumps(event, separators=(",", ":")).encode()


@dataclass
class Variant:
    """One way to run the forwarder, and what it took per event."""

    name: str
    function: LambdaFunction
    cpu_ms: dict[str, list[float]] = field(default_factory=dict)
    """Of the function's process, by shape, event by event."""
    stages: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    """CPU milliseconds of the event's stages, as the function prints them, likewise."""
    _read: int = 0

    def take(self, shape: str, event: bytes, *, counts: bool) -> None:
        """Invoke it with one event."""
        before = self._cpu_seconds()
        invocation = self.function.invoke(event)
        if invocation.status != "success":
            raise RuntimeError(f"{self.name}: {invocation.payload.decode()}")
        took, profile = (self._cpu_seconds() - before) * 1000, self._profile()
        if counts:
            self.cpu_ms.setdefault(shape, []).append(took)
            self.stages.setdefault(shape, []).append(profile | {OUTSIDE: took - sum(profile.values())})

    def peak_mb(self) -> float:
        """The most resident memory so far."""
        status = Path(f"/proc/{self.function.environments[0].pid}/status").read_text()
        return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM"))

    def _cpu_seconds(self) -> float:
        (environment,) = self.function.environments
        # Linux: the CPU clock of another process, in nanoseconds.
        return time.clock_gettime(~environment.pid << 3 | 2)

    def _profile(self) -> dict[str, float]:
        with self.function.environments[0].log.open("rb") as log:
            log.seek(self._read)
            lines = log.readlines()
            self._read = log.tell()
        found = [json.loads(line) for line in lines if line.startswith(b'{"profile_ms"') and b"cpu_ms" in line]
        return dict(found[-1]["cpu_ms"]) if found else {}


def measure(
    *,
    tree: str = "",
    variables: str = "",
    shapes: tuple[str, ...] = tuple(SHAPES),
    events: int = 40,
    stages: bool = False,
) -> Outcome:
    """CPU of the forwarder per event, by its size, under the real runtime client.

    Args:
        tree: a variant's name and its sources: `name=folder`.
        variables: a variant's name and its variables: `name=VARIABLE=value,…`.
        shapes: of the events.
        events: of each shape.
        stages: whether to print the CPU of each stage of an event, too.
    """
    trees = {"base": REPOSITORY} | ({tree.partition("=")[0]: Path(tree.partition("=")[2])} if tree else {})
    name, _, more = variables.partition("=")
    own = {name: dict(each.split("=", 1) for each in more.split(","))} if variables else {}
    with grounded() as ground:
        known = {FLOW_VARIABLE: msgspec.json.encode(ground.settings()).decode(), PROFILE_VARIABLE: str(stages).lower()}
        ways = {each: (_bundle_of(trees.get(each, REPOSITORY)), known | own.get(each, {})) for each in [*trees, *own]}
        with in_turn(ground, ways) as variants:
            for shape in shapes:
                compare(ground, variants, shape, os.urandom(SHAPES[shape][0]), events)
            for variant in variants:
                print(f"{variant.name}: at most {variant.peak_mb():.0f} MB resident")
    return Outcome({})


@contextmanager
def in_turn(ground: Ground, ways: Mapping[str, tuple[Path, Mapping[str, str]]]) -> Iterator[list[Variant]]:
    """Variants by name, each with its bundle and variables, warm; they are stopped at the end."""
    variants: list[Variant] = []
    try:
        for name, (bundle, variables) in ways.items():
            function = LambdaFunction(
                name=name,
                bundle=bundle,
                handler="forward.handler",
                variables={"AWS_ENDPOINT_URL_DYNAMODB": ground.dynamodb.endpoint, **variables},
                timeout_seconds=60,
                folder=ground.folder,
                memory_mb=2048,
            )
            variants.append(Variant(name, function))
            function.initialise()
        yield variants
    finally:
        for variant in variants:
            variant.function.stop()


def _bundle_of(tree: Path) -> Path:
    """The forwarder's bundle as the sources of a tree make it."""
    code = "from infra.packaging.bundle import build; print(build('forward'))"
    environment = os.environ | {"PYTHONPATH": f"{tree / 'shared'}:{tree}"}
    made = subprocess.run([sys.executable, "-c", code], cwd=tree, env=environment, check=True, capture_output=True)
    return Path(made.stdout.decode().strip())


def compare(ground: Ground, variants: list[Variant], shape: str, value: bytes, events: int) -> None:
    """Give each variant as many events of a shape, whose records have this value, in turns; print what they took."""
    _, lanes, *most = SHAPES[shape]
    made = {variant.name: Events(f"{shape}-{variant.name}", value, lanes, *most) for variant in variants}
    ground.create_remote({f"source.{shape}-{name}": lanes for name in made})
    for number in range(events + WARM_UP):
        turn = number % len(variants)
        for variant in variants[turn:] + variants[:turn]:
            variant.take(shape, made[variant.name].following(), counts=number >= WARM_UP)
    first = variants[0]
    for variant in variants:
        took = median(variant.cpu_ms[shape])
        ratios = [mine / base for mine, base in zip(variant.cpu_ms[shape], first.cpu_ms[shape], strict=True)]
        low, _, high = quantiles(ratios, n=4)
        records = made[variant.name].records_per_lane * lanes
        print(
            f"{shape:>8} {variant.name:>12} {took:7.1f} ms CPU an event  {median(ratios):5.3f} of {first.name} "
            f"[{low:.3f} to {high:.3f}]  {records / took * 1000:>9,.0f} records per CPU-s, "
            f"{took / records * 1000:.2f} us each",
            flush=True,
        )
    names = list(first.stages[shape][0])
    for stage in names if len(names) > 1 else ():
        columns = "  ".join(f"{median(each.get(stage, 0.0) for each in v.stages[shape]):6.2f}" for v in variants)
        print(f"{'':>8} {stage:>14} {columns}")
