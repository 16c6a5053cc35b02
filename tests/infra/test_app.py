from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.assembly import EXAMPLES, Assembly


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_is_synthesized_and_breaks_no_rule(example: str, assembled: Callable[[str], Assembly]) -> None:
    assembly = assembled(example)

    assert len(assembly.templates) >= 5 * len(assembly.deployment.homes) - 1
