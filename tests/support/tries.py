"""How much of a test runs in `make test`: some cases of many, and few random tries (many by `make unit MANY=1`)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Final

import pytest

MANY: Final = "MIRRORLESS_MANY_TRIES"
"""The variable that asks for many, whatever its value."""


def tries(few: int, *, many: int) -> int:
    """The number of this run."""
    return many if os.environ.get(MANY) else few


def some_of(cases: Iterable[Any], *chosen: Any, others: pytest.MarkDecorator) -> list[Any]:
    """Parameters of a test that runs with the chosen ones in `make test`. Args: others: the mark `soak` of the rest."""
    assert chosen
    return [case if case in chosen else pytest.param(case, marks=others) for case in cases]
