"""The stacks of every example stay as they were frozen, but for the hashes of their assets."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.frozen.golden import difference, written
from tests.frozen.templates import name_of, text_of
from tests.support.assembly import EXAMPLES, Assembly


@pytest.mark.parametrize("example", EXAMPLES)
def test_what_is_deployed_is_as_it_was_frozen(example: str, assembled: Callable[[str], Assembly]) -> None:
    if changes := difference(name_of(example), text_of(assembled(example))):
        pytest.fail(changes, pytrace=False)


def test_every_frozen_template_is_of_an_example() -> None:
    assert written("templates") == sorted(map(name_of, EXAMPLES))
