"""A drill: flows in a lab of their own, a workload, faults, and an audit; and the printer of what that finds."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType

from lab.audit.audit import wait_until_replicated
from lab.cloud import Lab
from lab.drills.group_move import MovingGroup
from lab.drills.workload import SHAPES
from lab.servers.artifacts import DEFAULT_KAFKA
from mirrorless.adapters.dynamodb.chains import DynamoDbChains
from mirrorless.config.flow import Flow
from mirrorless.config.loading import load

REPOSITORY = Path(__file__).parents[2]
CONTROL: Mapping[str, Any] = {
    "emit_checkpoints_interval_seconds": 1,
    "sync_group_offsets_enabled": True,
    "sync_group_offsets_interval_seconds": 1,
    "refresh_topics_interval_seconds": 5,
    "window_seconds": 18,
    "group_grace_seconds": 2,
}
"""Set beside the configuration: intervals are short."""
SCHEDULE_SECONDS = 20.0
"""Instead of EventBridge's minute: a run that died with its broker is made up for by the next one."""
GROUP = "shop"


@dataclass(slots=True, kw_only=True)
class Drill(ABC):
    """A drill, on a lab that is not started yet."""

    lab: Lab
    console: Console
    over: threading.Event = field(init=False, default_factory=threading.Event)
    """Set to let everything end early."""

    @abstractmethod
    def run(self) -> dict[str, Any]:
        """Let the flows work, break them, and audit everything; the report for machines."""

    @abstractmethod
    def is_clean(self, report: Mapping[str, Any]) -> bool:
        """Whether the audit has found nothing."""

    @abstractmethod
    def told(self, report: Mapping[str, Any]) -> Iterable[RenderableType]:
        """The report for people."""

    @property
    def chains(self) -> DynamoDbChains:
        """The offset map."""
        return DynamoDbChains(self.lab.dynamodb.client(), self.lab.tables.offset_map)

    def group(self, flow: Flow, topics: Iterable[str]) -> MovingGroup:
        """The group that is to move, with what it reads."""
        partitions = {topic: SHAPES[topic].partitions for topic in topics}
        return MovingGroup(flow=flow, partitions=partitions, chains=self.chains, group=GROUP, over=self.over)

    def await_replicated(self, topics: Collection[str], seconds: float) -> None:
        """Wait until these topics are replicated. Heartbeats go on for ever: their mappings are never done."""
        mappings = [mapping for mapping in self.lab.flow_mappings if mapping.topic in topics]
        wait_until_replicated(self.lab, mappings, deadline=time.monotonic() + seconds)


def add_options(parser: argparse.ArgumentParser, report: str) -> None:
    """The options that each drill has. Args: report: the file's name, if no other is given."""
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kafka", default=os.environ.get("KAFKA") or DEFAULT_KAFKA, metavar="VERSION")
    parser.add_argument("--report", type=Path, default=REPOSITORY / report, metavar="FILE")


def perform(
    name: str,
    make: Callable[[Lab, Console], Drill],
    configuration: Path,
    *,
    kafka_version: str,
    written: Sequence[Path] = (),
    **options: Any,
) -> int:
    """Carry out a drill, and print it; 0 if it is clean.

    Args:
        name: of its folder.
        make: the drill, on this lab, shown on this console.
        configuration: of its flows.
        kafka_version: of its clusters.
        written: the report's file, and others of the drill; none where it keeps its results itself.
        options: more of `Lab`.
    """
    # SIGTERM ends it as Ctrl-C does: with everything stopped.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # A pipe or a log has no width of its own: give tables the room they need.
    console = Console(width=None if sys.stdout.isatty() else 120)
    began = time.monotonic()
    usual: dict[str, Any] = {
        "control_overrides": CONTROL,
        "schedule_seconds": SCHEDULE_SECONDS,
        "say": lambda text: console.print(f"[dim]{time.monotonic() - began:5.1f} s[/]  {text}", highlight=False),
    }
    folder = REPOSITORY / ".lab" / f"{name}-{os.getpid()}"
    lab = Lab(configuration=load(configuration), folder=folder, kafka_version=kafka_version, **(usual | options))
    clean = False
    try:
        drill = make(lab, console)
        report = drill.run()
        if written:
            report["seconds"] = round(time.monotonic() - began, 1)
            written[0].write_text(json.dumps(report, indent=2) + "\n")
        for each in drill.told(report):
            console.print(each)
        if written:
            console.print("; ".join((f"{report['seconds']} s", *map(str, written))))
        clean = drill.is_clean(report)
    finally:
        lab.stop()
        if clean:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            console.print(f"logs are kept in {folder}")
    return 0 if clean else 1
