"""The examples, synthesized: each once in a run, and only for a test that uses it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.support.assembly import Assembly


@pytest.fixture(scope="session")
def assembled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Assembly]:
    """An example's assembly, by the example's name."""

    @cache
    def of(example: str) -> Assembly:
        return _assembled(example, tmp_path_factory.mktemp("assemblies"))

    return of


def _assembled(example: str, parent: Path, **context: Any) -> Assembly:
    # Here, because whatever else is collected with these tests would start Node for nothing.
    from tests.support.assembly import EXAMPLES, assemble  # noqa: PLC0415 -- see above

    return assemble(EXAMPLES[example], parent / example, **context)
