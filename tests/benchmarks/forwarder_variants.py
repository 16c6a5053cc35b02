"""Variants of the forwarder side by side: the real bundle under the real runtime client.

Each variant is a folder of sources and variables of the environment. All of them get the same events in turn, from one
broker and one table; what is compared is the CPU of the function's process, all of its threads and the runtime client
included, event by event. Ratios of neighbours in time mean something on a busy machine; a single figure does not.

    python -m tests.benchmarks.forwarder_variants --tree before=/tmp/before --variables 'arenas=MALLOC_ARENA_MAX=1'
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles

import msgspec
from confluent_kafka.admin import AdminClient, NewTopic

from lab.functions.function import LambdaFunction
from lab.servers.dynamodb import DynamoDbLocal
from lab.servers.kafka import KafkaCluster
from mirrorless.naming import FLOW_VARIABLE, PROFILE_VARIABLE
from mirrorless.settings import ClusterSettings, FlowSettings
from mirrorless.tables import definitions
from tests.benchmarks.forwarder_cpu import Events

HERE = Path(__file__).parents[2]
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


@dataclass
class Variant:
    """One way to run the forwarder, and what it took per event.

    Attributes:
        name: for the table.
        function: where it runs.
        cpu_ms: of the function's process, by shape, event by event.
        stages: CPU milliseconds of the event's stages, as the function prints them, likewise.
    """

    name: str
    function: LambdaFunction
    cpu_ms: dict[str, list[float]] = field(default_factory=dict)
    stages: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    _read: int = 0

    def cpu_seconds(self) -> float:
        """What its one environment has used so far."""
        (environment,) = self.function.environments
        # Linux: the CPU clock of another process, in nanoseconds.
        return time.clock_gettime(~environment.pid << 3 | 2)

    def take(self, shape: str, event: bytes, *, counts: bool) -> None:
        """Invoke it with one event."""
        before = self.cpu_seconds()
        invocation = self.function.invoke(event)
        if invocation.status != "success":
            raise RuntimeError(f"{self.name}: {invocation.payload.decode()}")
        took = (self.cpu_seconds() - before) * 1000
        profile = self._profile()
        if counts:
            self.cpu_ms.setdefault(shape, []).append(took)
            self.stages.setdefault(shape, []).append(profile | {OUTSIDE: took - sum(profile.values())})

    def _profile(self) -> dict[str, float]:
        (environment,) = self.function.environments
        with environment.log.open("rb") as log:
            log.seek(self._read)
            lines = log.readlines()
            self._read = log.tell()
        found = [
            json.loads(line)["cpu_ms"] for line in lines if line.startswith(b'{"profile_ms"') and b"cpu_ms" in line
        ]
        return dict(found[-1]) if found else {}


def bundle_of(tree: Path) -> Path:
    """The forwarder's bundle as the sources of a tree make it."""
    code = "from infra.packaging.bundle import build; print(build('forward'))"
    environment = os.environ | {"PYTHONPATH": f"{tree / 'shared'}:{tree}"}
    made = subprocess.run(
        [sys.executable, "-c", code], cwd=tree, env=environment, check=True, capture_output=True, text=True
    )
    return Path(made.stdout.strip())


def settings_of(bootstrap: str) -> FlowSettings:
    """Exactly once, everything on."""
    return FlowSettings(
        flow="source->target",
        source=ClusterSettings(alias="source", bootstrap=bootstrap),
        target=ClusterSettings(alias="target", bootstrap=bootstrap, region="us-east-1"),
        replication_factor=1,
    )


def measure(
    trees: dict[str, Path], variables: dict[str, dict[str, str]], shapes: list[str], events: int, *, stages: bool
) -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        target = KafkaCluster(alias="target", folder=folder / "target", heap_mb=1024)
        dynamodb = DynamoDbLocal(folder=folder / "dynamodb")
        variants: list[Variant] = []
        try:
            for server in (target, dynamodb):
                server.begin_start()
            for server in (target, dynamodb):
                server.wait_ready()
            settings = settings_of(target.bootstrap)
            for table in definitions(settings.tables):
                dynamodb.client().create_table(**table.create_request())
            known = {
                FLOW_VARIABLE: msgspec.json.encode(settings).decode(),
                "AWS_ENDPOINT_URL_DYNAMODB": dynamodb.endpoint,
            }
            for name in [*trees, *variables]:
                function = LambdaFunction(
                    name=name,
                    bundle=bundle_of(trees.get(name, HERE)),
                    handler="forward.handler",
                    variables=known | {PROFILE_VARIABLE: str(stages).lower()} | variables.get(name, {}),
                    timeout_seconds=60,
                    folder=folder,
                    memory_mb=2048,
                )
                function.initialise()
                variants.append(Variant(name, function))
            admin = AdminClient({"bootstrap.servers": target.bootstrap})
            for shape in shapes:
                _shape(variants, shape, events, admin)
            for variant in variants:
                (environment,) = variant.function.environments
                status = Path(f"/proc/{environment.pid}/status").read_text()
                peak = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
                print(f"{variant.name}: at most {int(peak) / 1024:.0f} MB resident")
        finally:
            for variant in variants:
                variant.function.stop()
            for server in (target, dynamodb):
                server.stop()


def _shape(variants: list[Variant], shape: str, events: int, admin: AdminClient) -> None:
    size, lanes, *most = SHAPES[shape]
    made = {}
    for variant in variants:
        topic = f"{shape}-{variant.name}"
        made[variant.name] = Events(topic, size, lanes, *most)
        for future in admin.create_topics([NewTopic(f"source.{topic}", lanes, 1)]).values():
            future.result()
    for number in range(events + WARM_UP):
        turn = number % len(variants)
        for variant in variants[turn:] + variants[:turn]:
            variant.take(shape, made[variant.name].following(), counts=number >= WARM_UP)
    first = variants[0]
    for variant in variants:
        took = variant.cpu_ms[shape]
        ratios = [mine / base for mine, base in zip(took, first.cpu_ms[shape], strict=True)]
        low, _, high = quantiles(ratios, n=4)
        records = made[variant.name].records_per_lane * lanes
        print(
            f"{shape:>8} {variant.name:>12} {median(took):7.1f} ms CPU an event  "
            f"{median(ratios):5.3f} of {first.name} [{low:.3f} to {high:.3f}]  "
            f"{records / median(took) * 1000:>9,.0f} records per CPU-s",
            flush=True,
        )
    for stage in (
        first.stages[shape][0] if OUTSIDE in first.stages[shape][0] and len(first.stages[shape][0]) > 1 else ()
    ):
        columns = "  ".join(f"{median(each.get(stage, 0.0) for each in v.stages[shape]):6.2f}" for v in variants)
        print(f"{'':>8} {stage:>14} {columns}")


def _named(text: str) -> tuple[str, str]:
    name, equals, rest = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not name=…")
    return name, rest


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=_named, action="append", default=[], help="name=folder of other sources")
    parser.add_argument("--variables", type=_named, action="append", default=[], help="name=VARIABLE=value,…")
    parser.add_argument("--shapes", nargs="*", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--events", type=int, default=40)
    parser.add_argument("--stages", action="store_true", help="print the CPU of each stage of an event, too")
    arguments = parser.parse_args()
    measure(
        {"base": HERE} | {name: Path(path) for name, path in arguments.tree},
        {name: dict(each.split("=", 1) for each in text.split(",")) for name, text in arguments.variables},
        arguments.shapes,
        arguments.events,
        stages=arguments.stages,
    )
