"""The demonstration: two clusters in both directions, two faults, a group that moves, and a full audit.

While records flow, the consumer group `shop` reads two topics on one cluster, is moved to the other one, and back. Each
record must arrive once, and must be read once.
"""

from __future__ import annotations

import argparse
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.live import Live
from rich.table import Table

from lab.audit.audit import PartitionAudit, audit_topic, table, totals
from lab.drills.drill import CONTROL, GROUP, REPOSITORY, Drill, add_options, perform
from lab.drills.group_move import ClusterSide, GroupFindings, MovingGroup
from lab.drills.workload import SHAPES, Workload
from mirrorless.config.flow import Flow
from mirrorless.errors import ConfigurationError

RECORDS = 30_000
"""Produced on each side."""
SECONDS = 30.0
"""Over which they are spread."""
REPLICATED_WITHIN_SECONDS = 120.0
FUNCTION_KILL_AT, BROKER_KILL_AT = 0.3, 0.6
"""Part of the records after which the faults come."""
GROUP_TOPICS = ("orders", "payments")
"""With transactions among them, so that offsets differ between the clusters."""
LEAVE_AT, RETURN_AT = 0.15, 0.75
"""Part of the records after which the group leaves the source, and the target: both faults come while it is there."""
READ_AT_LEAST = 0.05
"""Of the records, before the group leaves: however slow the machine, it has read on both sides."""
MOVED_WITHIN_SECONDS = 90.0
READ_WITHIN_SECONDS = 120.0
LOOK_EVERY_SECONDS = 0.5


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register `python -m lab demo`."""
    parser = subparsers.add_parser("demo", help="two clusters, active-active, two faults, a moving group, and an audit")
    parser.add_argument("--config", type=Path, default=REPOSITORY / "replication.example.yaml", metavar="FILE")
    parser.add_argument("--records", type=int, default=RECORDS, help="produced on each side")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="over which they are spread")
    add_options(parser, "demo-report.json")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the demonstration; 0 if the audit finds nothing."""
    given = {"records": arguments.records, "seconds": arguments.seconds, "seed": arguments.seed}
    return perform(
        "demo",
        lambda lab, console: Demonstration(lab=lab, console=console, **given),
        arguments.config,
        kafka_version=arguments.kafka,
        written=[arguments.report],
        # The group's offsets go back too.
        control_overrides={**CONTROL, "sync_group_offsets_reverse_enabled": True},
        inject_faults=True,
    )


@dataclass(slots=True, kw_only=True)
class Demonstration(Drill):
    """The demonstration itself."""

    records: int
    seconds: float
    seed: int
    _workloads: dict[str, Workload] = field(init=False, default_factory=dict)
    _on_target: threading.Event = field(init=False, default_factory=threading.Event)

    def run(self) -> dict[str, Any]:
        """Start, produce on every source, break two things, move the group, wait, audit."""
        lab = self.lab
        flows = lab.flows
        if not all(topic in flow.literal_topics for flow in flows for topic in SHAPES):
            raise ConfigurationError(
                f"the demonstration writes to {', '.join(SHAPES)}, and every flow must replicate these",
                where=lab.configuration.origin,
                hint="add the topics to each flow, or use replication.example.yaml",
            )
        lab.start_servers()
        for number, alias in enumerate(sorted({flow.name.source for flow in flows})):
            self._workloads[alias] = Workload(
                lab.clusters[alias].bootstrap, records=self.records, seed=self.seed + number, seconds=self.seconds
            )
            self._workloads[alias].create_topics()
        lab.create_topics()
        lab.start_flows()
        group = self.group(flows[0], GROUP_TOPICS)
        with ThreadPoolExecutor() as pool, Live(self._progress(), console=self.console, transient=True) as live:
            producing = {alias: pool.submit(workload.produce) for alias, workload in self._workloads.items()}
            work = [
                *producing.values(),
                pool.submit(self._break_things, flows[0]),
                pool.submit(self._move, group, producing[flows[0].name.source]),
            ]
            try:
                while not work_is_over(work, seconds=LOOK_EVERY_SECONDS):
                    live.update(self._progress())
            finally:
                # Ctrl-C: leaving the pool waits for what runs in it.
                self.over.set()
                for workload in self._workloads.values():
                    workload.stop()
            for each in work:
                each.result()
            lab.say("everything is produced; waiting for the last records")
            self.await_replicated(SHAPES, REPLICATED_WITHIN_SECONDS)
        lab.say("replicated; reading both clusters whole")
        audits = {(flow.name, topic): audit_topic(lab, flow, topic) for flow in flows for topic in SHAPES}
        findings = group.findings({topic: audits[flows[0].name, topic] for topic in GROUP_TOPICS})
        return reported([row for audit in audits.values() for row in audit.rows], findings)

    def is_clean(self, report: Mapping[str, Any]) -> bool:
        """Whether each record arrived once and was read once, and the group was given nothing else."""
        return self._replicated(report) and _findings(report).clean

    def told(self, report: Mapping[str, Any]) -> Iterable[RenderableType]:
        """A row for each partition, and a line each for the records and for the group."""
        yield table(PartitionAudit(**row) for row in report["rows"])
        found, group = report["totals"], _findings(report)
        whole = "each arrived once, in order, byte for byte, and every offset translates"
        yield f"{found['records']:,} records audited: {whole if self._replicated(report) else found}."
        counts = ", ".join(f"{count:,} on {alias}" for alias, count in group.read_on.items())
        mark = "[bold]" if group.clean else "[bold red]"
        verdict = f"{mark}{group.reread:,} read twice, {group.skipped:,} never read[/]"
        if group.strays:
            verdict += f", and offsets of {group.strays} topics that it never was to read"
        yield f"group {GROUP}, moved there and back: {group.records:,} records, {counts}: {verdict}."

    def _replicated(self, report: Mapping[str, Any]) -> bool:
        return not any(count for name, count in report["totals"].items() if name != "records")

    def _break_things(self, flow: Flow) -> None:
        """Kill the function between produce and record, then the target's broker; the group reads there."""
        workload, target = self._workloads[flow.name.source], self.lab.clusters[flow.name.target]
        self._on_target.wait()
        if self._reached(workload, FUNCTION_KILL_AT):
            order = self.lab.faults.order("kill", "produced")
            if not self.lab.faults.await_claimed(order, seconds=REPLICATED_WITHIN_SECONDS, over=self.over):
                return
            self.lab.say("[bold]fault 1[/]: a function was killed (-9) after it produced, before it recorded anything")
        if self._reached(workload, BROKER_KILL_AT):
            self.lab.say(f"[bold]fault 2[/]: the broker of {target.alias} is killed (-9)")
            target.kill()

    def _move(self, group: MovingGroup, producing: Future[None]) -> None:
        """Let the group read here, there, and here again, to the end."""
        try:
            self._move_on(group, "source", LEAVE_AT)
        finally:
            self._on_target.set()  # or never will be: no waiter may wait for it any longer
        self._move_on(group, "target", RETURN_AT)
        group.read_to_end(produced=producing.done, seconds=READ_WITHIN_SECONDS)

    def _move_on(self, group: MovingGroup, side: ClusterSide, part: float) -> None:
        """Let the group read on one side until a part of the records is produced, and move it to the other."""
        name = group.flow.name
        workload, some = self._workloads[name.source], int(self.records * READ_AT_LEAST)
        group.read(side, at_least=some, until=lambda: workload.progress >= part, seconds=READ_WITHIN_SECONDS)
        other: ClusterSide = "target" if side == "source" else "source"
        here, there = (name.source, name.target) if side == "source" else (name.target, name.source)
        self.lab.say(f"[bold]group {GROUP}[/]: it leaves {here}; waiting for its offsets on {there}")
        seconds = group.await_offsets(other, seconds=MOVED_WITHIN_SECONDS)
        self.lab.say(f"[bold]group {GROUP}[/]: it goes on on {there} after {seconds:.1f} s")

    def _reached(self, workload: Workload, part: float) -> bool:
        """Wait for a part of the records; False when everything is over before."""
        while workload.progress < part:
            if self.over.wait(LOOK_EVERY_SECONDS):
                return False
        return True

    def _progress(self) -> Table:
        grid = Table(box=None)
        for heading in ("flow", "produced", "forwarded, offsets", "failed invocations"):
            grid.add_column(heading, justify="left" if heading == "flow" else "right")
        for flow in self.lab.flows:
            mappings = [mapping for mapping in self.lab.flow_mappings if mapping.flow == str(flow.name)]
            counts = [self.lab.mappings.metrics(mapping.uuid) for mapping in mappings]
            sums = (sum(each.get(name, 0) for each in counts) for name in ("Committed", "FailedInvoke"))
            workload = self._workloads.get(flow.name.source)
            grid.add_row(str(flow.name), *(f"{each:,}" for each in (workload.produced if workload else 0, *sums)))
        return grid


def reported(rows: Sequence[PartitionAudit], group: GroupFindings) -> dict[str, Any]:
    """The report for machines."""
    groups = {"group": GROUP, **asdict(group)}
    return {"totals": totals(rows), "groups": groups, "rows": [asdict(row) for row in rows]}


def _findings(report: Mapping[str, Any]) -> GroupFindings:
    return GroupFindings(**{name: value for name, value in report["groups"].items() if name != "group"})


def work_is_over(work: Collection[Future[None]], *, seconds: float) -> bool:
    """Wait for all work to end, or for any to fail, for so long at most; whether it came to that.

    What waits for work that failed would wait for ever: the failure must end it, and be what is reported.
    """
    done, running = wait(work, seconds, FIRST_EXCEPTION)
    return not running or any(each.exception() for each in done)
