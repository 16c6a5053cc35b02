"""The Makefile's own machinery: what the set-up says, several steps at once, and what the lab needs."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.integration_parts import PARTS, place

ROOT = Path(__file__).parents[2]
STEPS = """
good:
	@sleep 0.5; echo "[ 40%]"; sleep 1.5; echo good ends
bad:
	@echo bad begins; sleep 0.5; echo bad ends; exit 3
last:
	@echo last
"""


def test_each_step_says_when_it_begins_and_ends_and_prints_in_one_piece(tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text(STEPS)

    made = subprocess.run(
        [sys.executable, "-m", "tests.support.steps", "--jobs", "2", "good", "bad", "last"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert (made.returncode, made.stderr) == (1, "")
    lines = re.sub(r"\b\d+ s\b", "n s", made.stdout).splitlines()
    assert [line for line in lines if not line.startswith("make")] == [
        "== good begins (1 of 3)",
        "== bad begins (2 of 3)",
        "== bad FAILED after n s, n s of CPU:",
        "bad begins",
        "bad ends",
        "== 1 of 3 done after n s, n s of CPU",
        "== last begins (3 of 3)",
        "== last passed after n s, n s of CPU:",
        "last",
        "== 2 of 3 done after n s, n s of CPU",
        "== good passed after n s, n s of CPU:",
        "[ 40%]",
        "good ends",
        "== 3 of 3 done after n s, n s of CPU",
        "== FAILED: bad",
    ]


def test_the_set_up_counts_what_it_brings_and_no_cache_of_the_user(tmp_path: Path) -> None:
    (tmp_path / ".venv/bin").mkdir(parents=True)
    uv = tmp_path / ".venv/uv"  # comes with the set-up itself, and knows the cache from then on
    uv.write_text(f"#!/bin/sh\necho {tmp_path}/users-cache\n")
    uv.chmod(0o755)
    for name, megabytes in (("users-cache", 50), ("brought", 3)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "wheel").write_bytes(b"x" * megabytes * 1_000_000)
    (tmp_path / "Makefile").write_text(
        f"include {ROOT}/Makefile\nprobe:\n"
        "\t@$(SHOWN); mv .venv/uv .venv/bin/uv; mkdir .cache; mv brought .cache; sleep 2\n"
    )

    made = subprocess.run(
        ["make", "probe", "EVERY_SECONDS=0.5"], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
    )

    said = [int(number) for number in re.findall(r" s, (\d+) MB so far", made.stdout)]
    assert 0 < max(said) <= 4, made.stdout


WITH_THE_LAB_ONLY = """
import sys
from importlib.machinery import PathFinder

class Hiding(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in sys.argv[1].split() else PathFinder.find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Hiding
for module in sys.argv[2:]:
    __import__(module)
"""


def of_the_lab() -> set[str]:
    """The distributions that `pip install '.[lab]'` brings here."""
    found = set[str]()
    wanted = [("mirrorless", frozenset({"lab"}))]
    while wanted:
        name, extras = wanted.pop()
        for each in map(Requirement, distribution(name).requires or ()):
            asked = [not each.marker or each.marker.evaluate({"extra": extra}) for extra in (*extras, "")]
            key = canonicalize_name(each.name)
            if any(asked) and (key not in found or key == "mirrorless"):
                found.add(key)
                wanted.append((each.name, frozenset(each.extras)))
    return found


def test_the_lab_and_the_command_import_only_what_comes_with_the_lab() -> None:
    """So Spark, the CDK and the checks wait for who needs them."""
    there = of_the_lab()
    others = " ".join(
        package
        for package, names in packages_distributions().items()
        if not set(map(canonicalize_name, names)) & (there | {"pip", "setuptools"})
    )
    command = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in (ROOT / "cli").rglob("*.py")
        if path.name != "__init__.py"
    ]

    imported = subprocess.run(
        [sys.executable, "-c", WITH_THE_LAB_ONLY, others, "lab.__main__", *command],
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'shared'}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )

    assert imported.returncode == 0, imported.stderr
    assert {"pyspark", "numpy", "aws_cdk", "mypy", "pytest"} <= set(others.split())


def test_the_set_up_hands_lists_of_extras_to_pip_whole() -> None:
    """A comma within an argument of make's `call` begins another one."""
    printed = subprocess.run(
        ["make", "--dry-run", "--always-make", ".venv/.spark-ready", ".venv/.ready"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout

    assert set(re.findall(r" -e (.*?)(?: \|\||; )", printed)) == {
        "'.[lab]'",
        "'.[lab,spark]'",
        "'.[lab,dev,infra,spark]'",
    }


@pytest.mark.parametrize("target", ["demo", "lab", "translate"])
def test_what_runs_without_jobs_waits_for_the_lab_only(target: str) -> None:
    (line,) = re.findall(rf"^{target}: (.*?) ##", (ROOT / "Makefile").read_text(), re.MULTILINE)

    assert line == "$(DEMO_READY)"


FOLDER = ROOT / "tests" / "integration"
FILES = [path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("test_*.py")]


def test_every_beginning_in_the_plan_has_a_file() -> None:
    """A renamed file would fall to the last part, unnoticed."""
    deciding = {place(path) for path in FILES}
    named = {(part, position) for part, paths in enumerate(PARTS) for position, _ in enumerate(paths)}

    assert named == deciding


def test_make_runs_every_part() -> None:
    makefile = (ROOT / "Makefile").read_text()

    started = re.search(r"addprefix integration-,([\d ]+)\)", makefile)

    assert started is not None
    assert sorted(map(int, started[1].split())) == list(range(len(PARTS)))
