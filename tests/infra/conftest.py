"""The examples, synthesized: each once in a run, however many processes test, and only for a test that uses it."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.support.assembly import Assembly


@pytest.fixture(scope="session")
def assemblies(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """Where all processes of a run find what one of them synthesized."""
    mine = tmp_path_factory.getbasetemp()
    folder = (mine if worker_id == "master" else mine.parent) / "assemblies"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def assembled(assemblies: Path) -> Callable[[str], Assembly]:
    """An example's assembly, by the example's name."""

    @cache
    def of(example: str) -> Assembly:
        return _once(example, assemblies / example)

    return of


@pytest.fixture(scope="session")
def assembled_here(assemblies: Path) -> Assembly:
    """The assembly of `cross-account` for this machine."""
    return _once("cross-account", assemblies / "cross-account-here", **{"mirrorless:local": True})


def _once(example: str, folder: Path, **context: Any) -> Assembly:
    # Here, because the process that hands the tests out reads this file too, and would start Node for nothing.
    from infra.deployment import plan  # noqa: PLC0415 -- see above
    from mirrorless.config import load  # noqa: PLC0415 -- see above
    from tests.support.assembly import EXAMPLES, Assembly, assemble  # noqa: PLC0415 -- see above

    config = EXAMPLES[example]
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until it is closed
        if not folder.exists():
            # Renamed when it is whole: one that breaks a rule breaks it in every process.
            assemble(config, folder.with_suffix(".unfinished"), **context).folder.rename(folder)
    return Assembly(folder, plan(load(config)))
