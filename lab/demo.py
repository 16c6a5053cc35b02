"""Does it do what it says, before my eyes? Two clusters, both ways, two faults, and an audit of every record."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table

from lab.artifacts import DEFAULT_KAFKA
from lab.audit import Row, audit_topic, table, totals, wait_until_replicated
from lab.cloud import Lab
from lab.workload import SHAPES, Workload
from mirrorless.configuration.flow import Flow
from mirrorless.configuration.loading import load
from mirrorless.errors import ConfigurationError

REPOSITORY = Path(__file__).parent.parent
RECORDS = 30_000
"""Produced on each side."""
SECONDS = 30.0
"""Over which they are spread."""
REPLICATED_WITHIN_SECONDS = 120.0
FUNCTION_KILL_AT, BROKER_KILL_AT = 0.3, 0.6
"""Part of the records after which the faults come."""
LOOK_EVERY_SECONDS = 0.5


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register `python -m lab demo`."""
    parser = subparsers.add_parser("demo", help="two clusters, active-active, two faults, and an audit of every record")
    parser.add_argument("--config", type=Path, default=REPOSITORY / "replication.example.yaml", metavar="FILE")
    parser.add_argument("--records", type=int, default=RECORDS, help="produced on each side")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kafka", default=os.environ.get("KAFKA") or DEFAULT_KAFKA, metavar="VERSION")
    parser.add_argument("--report", type=Path, default=REPOSITORY / "demo-report.json", metavar="FILE")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the demonstration; 0 if the audit finds nothing."""
    # SIGTERM ends it as Ctrl-C does: with everything stopped.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # A pipe or a log has no width of its own: give the table the room it needs.
    console = Console(width=None if sys.stdout.isatty() else 120)
    began = time.monotonic()
    folder = REPOSITORY / ".lab" / f"demo-{os.getpid()}"
    lab = Lab(
        configuration=load(arguments.config),
        folder=folder,
        kafka_version=arguments.kafka,
        inject_faults=True,
        say=lambda text: console.print(f"[dim]{time.monotonic() - began:5.1f} s[/]  {text}", highlight=False),
    )
    clean = False
    try:
        rows = Demonstration(lab, console, records=arguments.records, seed=arguments.seed).run()
        found = totals(rows)
        report = {"seconds": round(time.monotonic() - began, 1), "totals": found, "rows": [asdict(row) for row in rows]}
        arguments.report.write_text(json.dumps(report, indent=2) + "\n")
        console.print(table(rows))
        clean = not any(count for name, count in found.items() if name != "records")
        verdict = "each arrived once, in order, byte for byte, and every offset translates" if clean else str(found)
        console.print(f"{found['records']:,} records audited: {verdict}.\n{report['seconds']} s; {arguments.report}")
    finally:
        lab.stop()
        if clean:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            console.print(f"logs are kept in {folder}")
    return 0 if clean else 1


@dataclass(slots=True)
class Demonstration:
    """The demonstration itself, on a lab that is not started yet."""

    lab: Lab
    console: Console
    records: int
    seed: int
    _workloads: dict[str, Workload] = field(init=False, default_factory=dict)
    _over: threading.Event = field(init=False, default_factory=threading.Event)

    def run(self) -> Sequence[Row]:
        """Start, produce on every source, break two things, wait, audit."""
        lab = self.lab
        flows = lab.flows
        topics = [topic for topic in SHAPES if all(topic in flow.literal_topics for flow in flows)]
        if len(topics) != len(SHAPES):
            raise ConfigurationError(
                f"the demonstration writes to {', '.join(SHAPES)}, and every flow must replicate these",
                where=lab.configuration.origin,
                hint="add the topics to each flow, or use replication.example.yaml",
            )
        lab.start_servers()
        for number, alias in enumerate(sorted({flow.name.source for flow in flows})):
            workload = Workload(
                lab.clusters[alias].bootstrap, records=self.records, seed=self.seed + number, seconds=SECONDS
            )
            workload.create_topics()
            self._workloads[alias] = workload
        lab.create_topics()
        lab.start_flows()

        with ThreadPoolExecutor() as pool, Live(self._progress(), console=self.console, transient=True) as live:
            work = [pool.submit(workload.produce) for workload in self._workloads.values()]
            work.append(pool.submit(self._break_things, flows[0]))
            try:
                while not all(each.done() for each in work):
                    self._over.wait(LOOK_EVERY_SECONDS)
                    live.update(self._progress())
            finally:
                # Ctrl-C: leaving the pool waits for what runs in it.
                self._over.set()
                for workload in self._workloads.values():
                    workload.stop()
            for each in work:
                each.result()
            lab.say("everything is produced; waiting for the last records")
            wait_until_replicated(lab, lab.flow_mappings, deadline=time.monotonic() + REPLICATED_WITHIN_SECONDS)
        lab.say("replicated; reading both clusters whole")
        return [row for flow in flows for topic in topics for row in audit_topic(lab, flow, topic).rows]

    def _break_things(self, flow: Flow) -> None:
        """Kill the function between produce and record, then the target's broker."""
        workload, target = self._workloads[flow.name.source], self.lab.clusters[flow.name.target]
        if self._reached(workload, FUNCTION_KILL_AT):
            order = self.lab.faults.order("kill", "produced")
            self.lab.faults.await_claimed(order, seconds=REPLICATED_WITHIN_SECONDS)
            self.lab.say("[bold]fault 1[/]: a function was killed (-9) after it produced, before it recorded anything")
        if self._reached(workload, BROKER_KILL_AT):
            self.lab.say(f"[bold]fault 2[/]: the broker of {target.alias} is killed (-9)")
            target.kill()

    def _reached(self, workload: Workload, part: float) -> bool:
        """Wait for a part of the records; False when everything is over before."""
        while workload.progress < part:
            if self._over.wait(LOOK_EVERY_SECONDS):
                return False
        return True

    def _progress(self) -> Table:
        grid = Table(box=None)
        for heading in ("flow", "produced", "forwarded, offsets", "failed invocations"):
            grid.add_column(heading, justify="left" if heading == "flow" else "right")
        for flow in self.lab.flows:
            counts = [
                self.lab.mappings.metrics(mapping.uuid)
                for mapping in self.lab.flow_mappings
                if mapping.flow == str(flow.name)
            ]
            workload = self._workloads.get(flow.name.source)
            grid.add_row(
                str(flow.name),
                f"{workload.produced if workload else 0:,}",
                f"{sum(each.get('Committed', 0) for each in counts):,}",
                f"{sum(each.get('FailedInvoke', 0) for each in counts):,}",
            )
        return grid
