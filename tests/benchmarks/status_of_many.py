"""`mirrorless status` and `verify` of a lab with 20 topics of 12 partitions, each run as an operator runs it.

    python -m tests.benchmarks.status_of_many [--figures FILE]

The clusters, DynamoDB Local, the functions and Spark share this machine's cores. The status is run five times, and its
median counts, with Python's start in it; the verification once, cold, with Spark's start. Exits 1 where the status took
2 s or more, the verification 40 s or more, or where not every record is proved.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Final

ROOT = Path(__file__).parents[2]
TOPICS, PARTITIONS, RECORDS, LOOKS = 20, 12, 600, 5
FLOW: Final = "us-east->eu-west"
STATUS_SECONDS, VERIFY_SECONDS = 2.0, 40.0
WAIT_SECONDS = 180.0

CONFIG: Final = f"""\
clusters:
  us-east: {{region: us-east-1, bootstrap.servers: [b-1.useast.example.com:9092]}}
  eu-west: {{region: eu-west-1, bootstrap.servers: [b-1.euwest.example.com:9092]}}
flows:
  {FLOW}: {{topics: [{", ".join(f"topic-{number}" for number in range(TOPICS))}]}}
"""


def main() -> int:
    """Measure; see the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--figures", type=Path, metavar="FILE", help="write the figures there, as JSON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="status-of-many-") as folder:
        config, state = Path(folder, "replication.yaml"), Path(folder, "state.json")
        config.write_text(CONFIG)
        up = ("up", "--config", str(config), "--state", str(state), "--partitions", str(PARTITIONS))
        lab = subprocess.Popen([sys.executable, "-m", "lab", *up], cwd=ROOT)
        try:
            _wait(state, lab)
            found = _measured(state)
        finally:
            lab.send_signal(signal.SIGINT)
            lab.wait(60)
    print(json.dumps(found, indent=2))
    if arguments.figures is not None:
        arguments.figures.write_text(json.dumps(found))
    return int(found["status_seconds"] >= STATUS_SECONDS or found["verify_seconds"] >= VERIFY_SECONDS)


def _wait(state: Path, lab: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + WAIT_SECONDS
    while not (state.exists() and json.loads(state.read_text()).get("ready")):
        if lab.poll() is not None or time.monotonic() > until:
            raise RuntimeError("the lab did not start")
        time.sleep(0.5)


def _measured(state: Path) -> dict[str, float]:
    for number in range(TOPICS):
        _run(state, "lab", "produce", f"topic-{number}", "--records", str(RECORDS))
    until = time.monotonic() + WAIT_SECONDS
    while waiting := _waiting(state):
        if time.monotonic() > until:
            raise RuntimeError(f"{waiting} records were not replicated")
    looks = [_run(state, "status", FLOW)[0] for _ in range(LOOKS)]
    seconds, said = _run(state, "verify", "start", FLOW)
    if f"{TOPICS * RECORDS:,} of {TOPICS * RECORDS:,} records are proved" not in said:
        raise RuntimeError(said[-2_000:])
    return {
        "lanes": TOPICS * PARTITIONS,
        "status_seconds": round(median(looks), 2),
        "status_slowest_seconds": round(max(looks), 2),
        "verify_seconds": round(seconds, 1),
    }


def _waiting(state: Path) -> int:
    (flow,) = json.loads(_run(state, "status", FLOW, "--json")[1])["flows"]
    lags = [lane["lag"] for topic in flow["topics"] for lane in topic["partitions"] if topic["topic"] != "heartbeats"]
    return sum(lags) if lags and None not in lags else TOPICS * RECORDS


def _run(state: Path, *words: str) -> tuple[float, str]:
    """Run a command; the seconds that it took, and what it said."""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "cli.main", *words, "--lab", str(state)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return time.monotonic() - began, done.stdout + done.stderr


if __name__ == "__main__":
    sys.exit(main())
