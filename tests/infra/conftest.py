"""The examples, synthesized: each once in a run, however many processes test, and only if a test asks for it."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from functools import cache

import pytest

from infra.deployment import plan
from mirrorless.config import load
from tests.support.assembly import EXAMPLES, Assembly, assemble


@pytest.fixture(scope="session")
def assembled(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Callable[[str], Assembly]:
    """An example's assembly, by the example's name. All processes of a run read the same folder."""
    mine = tmp_path_factory.getbasetemp()
    shared = (mine if worker_id == "master" else mine.parent) / "assemblies"
    shared.mkdir(exist_ok=True)

    @cache
    def of(example: str) -> Assembly:
        config, folder = EXAMPLES[example], shared / example
        with (shared / f"{example}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # until it is closed
            if not folder.exists():
                # Renamed when it is whole: one that breaks a rule breaks it in every process.
                assemble(config, shared / f"{example}.unfinished").folder.rename(folder)
        return Assembly(folder, plan(load(config)))

    return of
