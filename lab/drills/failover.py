"""The failover demonstration: one flow, one outage, a failover, a failback, and an account of every record.

    records flow from A to B  ->  a drill  ->  A stops in the middle: its last records never left it
    mirrorless failover --source-lost  ->  producers and the group go on on B  ->  A is back
    mirrorless failback  ->  everybody returns to A

Every record that anybody wrote must be accounted for, and the group must have read each of them once.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from lab.audit.failover import FINDINGS
from lab.cloud import Lab
from lab.drills.failover_drill import GROUP, Drill
from lab.servers.artifacts import DEFAULT_KAFKA
from mirrorless.config.loading import load

REPOSITORY = Path(__file__).parents[2]
RECORDS = 20_000
"""While everything is well; fewer in the other parts."""
CONTROL = {
    "checkpoints_seconds": 1,
    "sync_group_offsets_seconds": 1,
    "refresh_topics_seconds": 5,
    "window_seconds": 18,
    "group_grace_seconds": 2,
}
SCHEDULE_SECONDS = 20.0


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register `python -m lab failover`."""
    parser = subparsers.add_parser("failover", help="lose a region, fail over, fail back, account for all")
    parser.add_argument("--records", type=int, default=RECORDS, help="written while everything is well")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kafka", default=os.environ.get("KAFKA") or DEFAULT_KAFKA, metavar="VERSION")
    parser.add_argument("--report", type=Path, default=REPOSITORY / "failover-report.json", metavar="FILE")
    parser.add_argument("--page", type=Path, default=REPOSITORY / "failover-report.html", metavar="FILE")
    parser.add_argument(
        "--quick", action="store_true", help="work shorter, replace warm functions: not a minute's wait"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the drill; 0 if everything is accounted for."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = Console(width=None if sys.stdout.isatty() else 120)
    began = time.monotonic()
    folder = REPOSITORY / ".lab" / f"failover-{os.getpid()}"
    lab = Lab(
        configuration=load(REPOSITORY / "lab" / "failover.yaml"),
        folder=folder,
        kafka_version=arguments.kafka,
        control_overrides=CONTROL,
        schedule_seconds=SCHEDULE_SECONDS,
        say=lambda text: console.print(f"[dim]{time.monotonic() - began:5.1f} s[/]  {text}", highlight=False),
    )
    clean = False
    try:
        drill = Drill(lab, records=arguments.records, seed=arguments.seed, quick=arguments.quick)
        try:
            report = drill.run()
        finally:
            if drill.page is not None and drill.page.exists():
                shutil.copyfile(drill.page, arguments.page)
        report["seconds"] = round(time.monotonic() - began, 1)
        arguments.report.write_text(json.dumps(report, indent=2) + "\n")
        totals = report["totals"]
        clean = is_clean(totals)
        console.print(_told(totals))
        console.print(f"{report['seconds']} s; {arguments.report}; {arguments.page}")
    finally:
        lab.stop()
        if clean:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            console.print(f"logs are kept in {folder}")
    return 0 if clean else 1


def is_clean(totals: Mapping[str, Any]) -> bool:
    """Whether every record is accounted for, and was read once."""
    wrong = any(totals[name] for name in (*FINDINGS, "reread", "skipped"))
    return not wrong and totals["orphans"] == totals["orphans_made"] and totals["reconciled"]


def _told(totals: Mapping[str, Any]) -> str:
    mark = "[bold]" if is_clean(totals) else "[bold red]"
    faults = ", ".join(f"{totals[name]:,} {name}" for name in FINDINGS)
    return (
        f"{totals['records']:,} records on the source: {mark}{faults}[/]\n"
        f"{totals['orphans_made']:,} had not been replicated when it was lost: {mark}{totals['orphans']:,} found[/]\n"
        f"{totals['copied_back']:,} came back from the target: {totals['copied_back_ratio']:.1%} of its bytes\n"
        f"group {GROUP}, moved there and back: {mark}{totals['reread']:,} read twice, "
        f"{totals['skipped']:,} never read[/]"
    )
