"""A package's coverage is that of all its files, wherever they lie, and must not fall."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.frozen import coverage

FLOORS = dict.fromkeys(coverage.PACKAGES, 80.0)


def report(files: dict[str, tuple[int, int]], *, branches: bool = True) -> dict[str, Any]:
    """As `coverage json` writes it: branches that were taken, and branches, by file."""
    return {
        "meta": {"branch_coverage": branches},
        "files": {
            file: {"summary": {"covered_branches": covered, "num_branches": of}}
            for file, (covered, of) in files.items()
        },
    }


def whole(percent: int = 80) -> dict[str, tuple[int, int]]:
    """Every package with one file."""
    return {f"{package}/a.py": (percent, 100) for package in coverage.PACKAGES}


@pytest.fixture
def floors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of floors for this test alone."""
    path = tmp_path / "coverage.toml"
    path.write_text("# why\n\n[floors]\n" + "".join(f"{name} = {floor}\n" for name, floor in FLOORS.items()))
    monkeypatch.setattr(coverage, "FLOORS", path)
    return path


@pytest.mark.parametrize(
    ("file", "package"),
    [
        ("shared/mirrorless/protocol/plan.py", "mirrorless"),
        ("shared/mirrorless/lab/plan.py", "mirrorless"),
        (f"{coverage.REPOSITORY}/shared/mirrorless/protocol/plan.py", "mirrorless"),
        ("cli/main.py", "cli"),
        ("cli/jobs/infra.py", "cli"),
        ("tests/unit/test_lab.py", None),
        ("setup.py", None),
    ],
)
def test_a_file_belongs_to_the_package_at_the_top(file: str, package: str | None) -> None:
    assert coverage.package_of(file) == package


def test_a_package_is_measured_over_all_its_files_and_a_file_without_branches_changes_nothing() -> None:
    files = {"lab/a.py": (1, 4), "lab/deep/b.py": (3, 4), "lab/c.py": (0, 0), "tests/d.py": (0, 9)}

    assert coverage.measured(report(files)) == {"lab": 50.0}


def test_a_report_without_branches_is_refused() -> None:
    with pytest.raises(ValueError, match="--branch"):
        coverage.measured(report({}, branches=False))


def test_half_a_point_below_the_floor_passes_and_more_does_not() -> None:
    now = dict.fromkeys(coverage.PACKAGES, 79.5)

    assert list(coverage.complaints(now, FLOORS)) == []
    (complaint,) = coverage.complaints(now | {"lab": 79.4}, FLOORS)
    assert complaint.startswith("lab: 79.4 %")


def test_a_package_that_vanished_or_has_no_floor_does_not_pass() -> None:
    now = dict.fromkeys(coverage.PACKAGES, 80.0)
    unmeasured = {name: percent for name, percent in now.items() if name != "cli"}
    unbound = {name: floor for name, floor in FLOORS.items() if name != "spark"}

    assert [complaint.split()[0] for complaint in coverage.complaints(unmeasured, FLOORS)] == ["cli"]
    assert [complaint.split()[0] for complaint in coverage.complaints(now, unbound)] == ["spark"]


@pytest.mark.usefixtures("floors")
@pytest.mark.parametrize(("percent", "code"), [(80, 0), (79, 1)])
def test_the_command_fails_below_a_floor(percent: int, code: int, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text(json.dumps(report(whole(percent))))

    assert coverage.main([str(path)]) == code


def test_what_is_measured_becomes_the_floors_when_that_is_ordered(floors: Path, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text(json.dumps(report(whole(91))))

    assert coverage.main([str(path), "--write"]) == 0

    assert floors.read_text().startswith("# why\n\n[floors]\nmirrorless = 91.0\n")
    assert coverage.main([str(path)]) == 0
