"""The tutorial: its commands, in order, on a lab of their own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.tutorial import PAGE, RECORDING, follow, steps

pytestmark = pytest.mark.integration


def test_the_commands_of_the_tutorial_print_what_the_page_says(tmp_path: Path) -> None:
    """Commands that wait for the flow are repeated until they show it; the recording has the same commands."""
    transcript = [command for command, _ in follow(tmp_path)]

    assert transcript == [step.command for step in steps(PAGE.read_text())]
    assert transcript == re.findall(r"^\$ (.*)$", RECORDING.read_text(), re.MULTILINE)
