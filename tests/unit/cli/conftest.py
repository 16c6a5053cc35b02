"""The small flow of the golden files, and the commands on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cli.deployment import DeployedFlows, Stores
from tests.frozen.small_flow import FLOW, small_flow
from tests.support.commands import Answer, Command


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    """Of the small flow, whose configuration and state file are in the current folder meanwhile."""
    with small_flow(tmp_path):
        yield DeployedFlows(config=Path("replication.yaml")).stores(FLOW)


@pytest.fixture
def in_lab(stores: Stores, command: Command) -> Callable[..., Answer]:  # noqa: ARG001 -- where it runs
    """Runs a command on the small flow."""
    return lambda *words: command(*words, "--lab", "lab.json")
