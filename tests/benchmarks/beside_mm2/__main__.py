"""The comparison of Mirrorless and MirrorMaker 2 on this machine: measures both and writes the report.

    python -m tests.benchmarks.beside_mm2 [--profile quick] [--resume] [--only throughput latency]

Both replicate between the same two real Kafka clusters, the same records, in rounds that alternate. What is measured so
far is in the report at any moment; after Ctrl-C, --resume goes on. It exits with 1 if something could not be measured.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from mirrorless.adapters.dynamodb.chains import DynamoDbChains
from mirrorless.cost.bill import ITEM_BYTES
from mirrorless.flow.settings import Tables
from tests.benchmarks.beside_mm2 import backlog, flow
from tests.benchmarks.beside_mm2.profiles import PROFILES, Profile
from tests.benchmarks.beside_mm2.report import Figures, Results, Run, open_results, page
from tests.benchmarks.beside_mm2.sides import OURS
from tests.benchmarks.ground import Ground
from tests.benchmarks.harness import Outcome
from tests.support.metered import MeteredClient
from tests.support.write_units import replicated, stored_bytes

JSON, PAGE = "bench-report.json", "bench-report.md"

LANES, EVENTS = 6, 10
"""Of what is counted and not timed."""

Part = Callable[[Ground, Results, Profile], None]


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    profiles = "\n".join(f"  {each.name:<6} {each.about}" for each in PROFILES.values())
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.beside_mm2",
        description=f"{__doc__}\nprofiles:\n{profiles}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--profile", choices=sorted(PROFILES), default="full")
    parser.add_argument("--only", nargs="+", choices=sorted(PARTS), metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--resume", action="store_true", help="go on with a run that was interrupted")
    parser.add_argument("--gigabytes", type=float, metavar="N", help="of each backlog of `backfill`, not the profile's")
    parser.add_argument("--out", type=Path, default=Path(), metavar="FOLDER", help=f"of {JSON} and {PAGE}")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="leave a page for the documentation there")
    chosen = parser.parse_args(arguments)
    profile = PROFILES[chosen.profile]
    if chosen.gigabytes is not None:
        profile = replace(profile, backfill_gigabytes=chosen.gigabytes)
    results = open_results(chosen.out / JSON, profile=profile.name, say=_clock(), resume=chosen.resume)
    results.say(f"{profile.name}: {profile.about}")
    interrupted = False
    try:
        with (
            tempfile.TemporaryDirectory(prefix="beside-mm2-") as folder,
            Ground(Path(folder), quick_start=profile.quick_start).running() as ground,
        ):
            for name in chosen.only or PARTS:
                with results.attempting(name):
                    PARTS[name](ground, results, profile)
    except KeyboardInterrupt:
        interrupted = True
        results.say("interrupted: --resume goes on from here")
    finally:
        results.write()
        (chosen.out / PAGE).write_text(page(results.run, raw=JSON))
    if chosen.keep is not None and not interrupted:
        keep(results.run, chosen.keep)
    for name, value in results.run.summary.items():
        results.say(f"{name}: {'not measured' if value is None else f'{value:.2f}'}")
    results.say(f"the report is in {chosen.out / JSON} and {chosen.out / PAGE}")
    failed = any(each.failed for each in results.run.measurements)
    return int(interrupted or failed or bool(results.run.unmeasured))


def keep(run: Run, folder: Path) -> None:
    """Leave a run for the documentation: its page, and its raw figures in `benchmarks`."""
    raw, text = folder / "benchmarks" / JSON, folder / "reference" / "benchmarks.md"
    for each in (raw, text):
        each.parent.mkdir(parents=True, exist_ok=True)
    raw.write_bytes(Results(raw, run, print).encoded())
    text.write_text(page(run, raw=f"../benchmarks/{JSON}"))


def _pull(ground: Ground, results: Results, profile: Profile) -> None:
    backlog.measure_pull(ground, results, profile)
    with results.attempting("latency of pull"):
        flow.measure_pull_latency(ground, results, profile)


def _measure_offset_map(ground: Ground, results: Results, _: Profile) -> None:
    """Counted and not timed, of events of a warm forwarder: write units by DynamoDB's word, and bytes."""

    def counted() -> dict[str, Figures]:
        table = Tables().offset_map
        stored = stored_bytes(ground.dynamodb.client(), table, lanes=LANES) + ITEM_BYTES
        client = MeteredClient(ground.dynamodb.client())
        chains = DynamoDbChains(client, table)
        for number in range(2, 2 + EVENTS):
            replicated(chains, number, range(LANES))
        return {OURS: {"write_units_per_event": client.write_units / EVENTS, "stored_bytes_per_event": float(stored)}}

    results.measure(counted, kind="offset map", case="6 lanes", turn=1, sides={OURS: ("",)})


PARTS: dict[str, Part] = {
    "throughput": backlog.measure_throughput,
    "latency": flow.measure_latency,
    "pull": _pull,
    "pass-through": backlog.measure_pass_through,
    "backfill": backlog.measure_steady,
    "catch-up": backlog.measure_catch_up,
    "recovery": flow.measure_recovery,
    "offset-map": _measure_offset_map,
}
"""In the order in which they are measured."""


def smoke() -> Outcome:
    """The smallest run of `make bench`."""
    code = main(["--profile", "smoke", "--out", ".lab"])
    return Outcome({}, ["something could not be measured"] * code)


def _clock() -> Callable[[str], None]:
    began = time.monotonic()

    def say(text: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - began), 60)
        print(f"bench {minutes:3}:{seconds:02}  {text}", file=sys.stderr, flush=True)

    return say


if __name__ == "__main__":
    # Whoever ends it otherwise than by Ctrl-C is to have the page as well, and no servers left behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
