"""Mutation testing by mutmut: each change of a line of the code that no test notices, held against a kept list.

    python -m tests.mutants.run --part protocol --minutes 20

A mutant is one small change of the code: a `<` for a `<=`, a `None` for an argument. It is killed if a test fails, and
survives otherwise. A survivor is a test that is missing, a line that is not needed, or a change that makes no
difference; `survivors.toml` names a reason for each, and one that it does not name makes this program fail.

mutmut works in a folder of its own for each part, keeps its verdicts there, and a later run goes on. It tests anew what
has survived without a reason, and the mutants of a function that has changed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from lab.servers.dynamodb import DynamoDbLocal
from lab.servers.kafka import KafkaCluster
from lab.servers.process import running
from tests.support.running_servers import ADDRESSES, addresses

ROOT: Final = Path(__file__).parents[2]
KEPT: Final = Path(__file__).with_name("survivors.toml")
FOLDER: Final = ROOT / ".lab" / "mutants"
MINUTES: Final = 60
MEMORY: Final = 4 * 1024**3
"""Bytes of a process's address space, at most: a mutant that gathers for ever would take what the machine has. Where
tests have Kafka's clients there is no limit, for their threads reserve much that they never use."""

WAITING_AT_ONCE: Final = 6
"""Mutants at once where tests wait for servers most of the time."""

COPIED: Final = ("functions", "spark", "cli", "lab", "infra", "tests", "replication.example.yaml", "constraints.txt")
"""What tests read beside the code, which mutmut wants in a folder `src`."""

WORDS: Final = (r"^\s*raise \w+\(", r"^\s*(where|hint|detail) ?=", r"^\s*log(ger)?\.\w+\(")
"""Lines that are left as they are: what people read of an error. Their tests look for words, not for all of them."""


GUARDS: Final = (r"^\s*return bool\(\w+\) and (not )?isinstance\(",)
"""Bodies of `TypeGuard`s, which are left too: mutmut wraps what it changes, and mypy narrows by no wrapped guard."""


@dataclass(frozen=True, slots=True)
class Part:
    """Code, and the tests that must notice its changes."""

    mutated: Sequence[str]
    """Below `shared/mirrorless`, modules or all of a folder."""
    tests: Sequence[str]
    chosen: str
    """Of these tests, as pytest's `-k`: without those that take most of the time, or stop a broker."""
    servers: bool = False
    """Whether the tests need clusters and DynamoDB Local."""


PARTS: Final[Mapping[str, Part]] = {
    "protocol": Part(
        ("protocol/*",),
        ("tests/unit/protocol", "tests/unit/groups/test_two_way.py", "tests/unit/chain/test_journal_chains.py"),
        chosen="not any_schedule or [records] or [jobs]",
    ),
    "kafka": Part(
        # What an event passes through, and what settles a doubt.
        tuple(f"adapters/kafka/{name}.py" for name in ("client", "delivery_reports", "source", "target", "writer")),
        (
            "tests/unit/adapters/test_kafka_writer.py",
            "tests/unit/adapters/test_kafka_client.py",
            "tests/unit/adapters/test_kafka_target.py",
            "tests/integration/test_kafka_writer.py",
            "tests/integration/test_lane_refusals.py",
            "tests/integration/test_lane_target_lost.py",
        ),
        chosen="not killed and not thread_sleeps and not compaction and not [80-",
        servers=True,
    ),
    "journal": Part(
        (
            *(f"chain/{name}.py" for name in ("chains", "ends", "entry", "search", "store")),
            "adapters/dynamodb/chains.py",
        ),
        ("tests/unit/chain", "tests/contract/test_chains.py", "tests/contract/test_throttled_stores.py"),
        chosen="not rivals",
        servers=True,
    ),
}

KILLED, SURVIVED, UNTESTED, TIMED_OUT, UNTYPED = "killed", "survived", "without a test", "timed out", "refused by mypy"
VERDICTS: Final[Mapping[int, str]] = {1: KILLED, 3: KILLED, 0: SURVIVED, 5: UNTESTED, 33: UNTESTED, 37: UNTYPED}
"""By mutmut's exit codes; the others are limits of time."""

NOT_YET: Final = "not tested yet"

Survivor = tuple[str, str]
"""A function's full name, and the changed lines: `- ` as they are, `+ ` as the mutant has them."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Why some survivors are no gap of the tests."""

    function: str
    """A pattern of shell style for the function's full name."""
    change: str
    """A regular expression that is found in the changed lines."""
    reason: str

    def explains(self, survivor: Survivor) -> bool:
        """Whether it is the reason for this survivor."""
        function, change = survivor
        return fnmatchcase(function, self.function) and re.search(self.change, change, re.MULTILINE) is not None


def main() -> int:
    """Run mutmut, and compare what survived with the kept list."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--part", choices=PARTS, help="only this one")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="stop after that long; a later run goes on")
    parser.add_argument("--fresh", action="store_true", help="forget what earlier runs have found")
    arguments = parser.parse_args()
    ends, kept = time.monotonic() + 60 * arguments.minutes, tomllib.loads(KEPT.read_text())
    failed = False
    for name in [arguments.part] if arguments.part else PARTS:
        folder = FOLDER / name
        if arguments.fresh:
            shutil.rmtree(folder, ignore_errors=True)
        reasons = [Kept(**entry) for entry in kept.get(name, [])]
        prepare(folder, PARTS[name])
        forget_survivors(folder, reasons)
        with servers(folder / "servers") if PARTS[name].servers else nullcontext():
            run(folder, ends - time.monotonic(), waits=PARTS[name].servers)
        failed |= report(name, folder, reasons)
    return int(failed)


def forget_survivors(folder: Path, reasons: Sequence[Kept]) -> None:
    """Forget who survived without a reason: mutmut keeps that too, although a test has been written since."""
    survived = [each for each, verdict in found(folder / "mutants") if verdict in {SURVIVED, UNTESTED}]
    forgotten = {
        mutant
        for mutant, survivor in zip(survived, described(folder, survived) if survived else (), strict=True)
        if not any(reason.explains(survivor) for reason in reasons)
    }
    for path in (folder / "mutants").rglob("*.py.meta"):
        meta = json.loads(path.read_text())
        codes = meta["exit_code_by_key"]
        meta["exit_code_by_key"] = {mutant: None if mutant in forgotten else code for mutant, code in codes.items()}
        path.write_text(json.dumps(meta, indent=4))


def prepare(folder: Path, part: Part) -> None:
    """Lay out a checkout as mutmut expects it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("src", *COPIED):
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(ROOT / ("shared" if name == "src" else name))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    pytest = {**project["pytest"]["ini_options"], "pythonpath": ["src", "functions", "."]}
    mutmut = {
        "source_paths": ["src"],
        "only_mutate": [f"src/mirrorless/{each}" for each in part.mutated],
        "also_copy": ["src", *COPIED],
        "pytest_add_cli_args_test_selection": list(part.tests),
        "pytest_add_cli_args": ["-k", part.chosen],
        "do_not_mutate_patterns": [*WORDS, *GUARDS],
        "process_isolation": "forkserver",
        # A mutant that loops for ever is given so many times what its tests take, and so many seconds more.
        "timeout_multiplier": 4.0,
        "timeout_constant": 5.0,
        "type_check_command": [
            "mypy",
            "--output",
            "json",
            *(f"src/mirrorless/{each.removesuffix('/*')}" for each in part.mutated),
        ],
    }
    mypy = {
        "strict": True,
        "warn_unused_ignores": False,
        "mypy_path": "src",
        "explicit_package_bases": True,
        "namespace_packages": True,
    }
    tools = {"pytest.ini_options": pytest, "mutmut": mutmut, "mypy": mypy}
    # JSON's strings, numbers, lists of them, true and false are TOML's too.
    lines = [line for tool, values in tools.items() for line in (f"[tool.{tool}]", *_lines(values))]
    for override in project["mypy"]["overrides"]:
        lines += ["[[tool.mypy.overrides]]", *_lines(override)]
    (folder / "pyproject.toml").write_text("\n".join(lines) + "\n")


def _lines(values: Mapping[str, object]) -> Iterator[str]:
    return (f"{key} = {json.dumps(value)}" for key, value in values.items())


@contextmanager
def servers(folder: Path) -> Iterator[None]:
    """Two clusters and DynamoDB Local, which all mutants share."""
    shutil.rmtree(folder, ignore_errors=True)
    source, target = (KafkaCluster(alias=alias, folder=folder / alias) for alias in ("us-east", "eu-west"))
    dynamodb = DynamoDbLocal(folder=folder / "dynamodb", in_memory=True)
    with running(source, target, dynamodb):
        os.environ[ADDRESSES] = addresses((source, target), dynamodb)
        try:
            yield
        finally:
            os.environ.pop(ADDRESSES, None)


def run(folder: Path, seconds: float, *, waits: bool) -> None:
    """Let mutmut test what has no verdict yet, until the time is over.

    Args:
        folder: of the part.
        seconds: left.
        waits: whether its tests wait for servers most of the time.

    Raises:
        SystemExit: mutmut failed, for instance because the tests fail without a mutant.
    """
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    at_once, limit = (WAITING_AT_ONCE, []) if waits else (os.cpu_count() or 1, ["prlimit", f"--as={MEMORY}"])
    process = subprocess.Popen(
        [*limit, "mutmut", "run", "--max-children", str(at_once)],
        cwd=folder,
        env={**os.environ, "PATH": path},
        start_new_session=True,
    )
    try:
        if process.wait(max(1.0, seconds)):
            raise SystemExit(f"mutmut ended with {process.returncode}; it works in {folder}")
    except subprocess.TimeoutExpired:
        print("\nthe time is over; run it again to go on", flush=True)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()


def report(name: str, folder: Path, kept: Sequence[Kept]) -> bool:
    """Print the verdicts, and what survives without a reason.

    Returns:
        whether a survivor is without a reason, or a reason without a survivor.
    """
    verdicts = dict(found(folder / "mutants"))
    print(f"{name}: {', '.join(f'{count} {verdict}' for verdict, count in Counter(verdicts.values()).most_common())}")
    survivors = described(folder, [each for each, verdict in verdicts.items() if verdict in {SURVIVED, UNTESTED}])
    unexplained = [each for each in survivors if not any(reason.explains(each) for reason in kept)]
    for function, change in unexplained:
        print(f"\nsurvives without a reason: {function}\n{change}")
    # What has not been tested yet may be what a reason is for.
    whole = NOT_YET not in verdicts.values()
    idle = [reason for reason in kept if whole and not any(reason.explains(each) for each in survivors)]
    for reason in idle:
        print(f"\na reason without a survivor: {reason.function} {reason.change}")
    print(f"{len(survivors)} survive, {len(unexplained)} of them without a reason in {KEPT.name}")
    return bool(unexplained or idle)


def found(folder: Path) -> Iterator[tuple[str, str]]:
    """Each mutant's name and verdict, as mutmut keeps them."""
    for path in sorted(folder.rglob("*.py.meta")):
        for mutant, code in json.loads(path.read_text())["exit_code_by_key"].items():
            yield mutant, NOT_YET if code is None else VERDICTS.get(code, TIMED_OUT)


def described(folder: Path, mutants: Sequence[str]) -> list[Survivor]:
    """Mutants as functions and changed lines, which stay the same when other code changes."""
    # mutmut reads its settings from the working folder once, and `mutmut show` takes a second for each.
    program = (
        "import json, sys; from mutmut.mutation.diff_apply import get_diff_for_mutant as diff;"
        "print(json.dumps([diff(each) for each in json.load(sys.stdin)]))"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        input=json.dumps(mutants),
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return [
        (
            re.sub(r"\.x_|\.xǁ|ǁ", ".", mutant.partition("__mutmut_")[0]),
            "\n".join(
                f"{line[0]} {line[1:].strip()}"
                for line in diff.splitlines()
                if line[:1] in {"-", "+"} and line[:3] not in {"---", "+++"}
            ),
        )
        for mutant, diff in zip(mutants, json.loads(shown), strict=True)
    ]


if __name__ == "__main__":
    # Whoever ends it otherwise than by Ctrl-C is to leave no mutmut behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
