"""What tests of several folders ask for."""

from __future__ import annotations

import pytest

from tests.support.commands import Command


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """The operator's commands, run in this process."""
    return Command(capsys)
