"""The examples, synthesized: each once, and only if a test asks for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from tests.support.assembly import EXAMPLES, Assembly, assemble


@pytest.fixture(scope="session")
def assembled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Assembly]:
    """An example's assembly, by the example's name."""

    @cache
    def of(example: str) -> Assembly:
        return assemble(EXAMPLES[example], tmp_path_factory.mktemp(example))

    return of
