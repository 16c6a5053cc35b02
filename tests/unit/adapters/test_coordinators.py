"""Requests to coordinators of groups that their caller does not wait for: the process lives on."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent.parent


def asked(way: str, *, rounds: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.support.asked_coordinators", way, str(rounds)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_a_request_that_times_out_by_itself_ends_the_process() -> None:
    """The client's fault. Once a new client passes here, `coordinators.REQUEST_SECONDS` has had its time."""
    died = asked("old", rounds=4)

    assert died.returncode in (-signal.SIGABRT, -signal.SIGSEGV), died.stdout + died.stderr


@pytest.mark.parametrize("way", ["commits", "offsets"])
def test_a_request_that_is_given_up_does_not(way: str) -> None:
    lived = asked(way, rounds=5)

    assert (lived.returncode, lived.stdout) == (0, "lived\n"), lived.stderr
