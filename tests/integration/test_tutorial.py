"""The tutorial: its commands, in order, on a lab of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.tutorial import PAGE, follow, steps

pytestmark = pytest.mark.integration


@pytest.mark.soak(
    "tests/contract/test_pages.py::test_each_command_of_the_tutorial_is_taken_and_shows_what_it_has_to",
    "tests/frozen/test_frozen.py::test_what_users_see_is_as_it_was_frozen",
)
def test_the_commands_of_the_tutorial_print_what_the_page_says(tmp_path: Path) -> None:
    """Commands that wait for the flow are repeated until they show it."""
    assert [command for command, _ in follow(tmp_path)] == [step.command for step in steps(PAGE.read_text())]
