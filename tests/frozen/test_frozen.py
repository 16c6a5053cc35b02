"""What users see stays as it was frozen, see tests/frozen/__init__.py."""

from __future__ import annotations

from functools import cache

import pytest

from tests.frozen.golden import difference, written
from tests.frozen.parts import PARTS, TEMPLATES


@cache
def now(part: str) -> dict[str, str]:
    """What the code makes now, made once for all files of a part."""
    return PARTS[part]()


@pytest.mark.parametrize(("part", "name"), [(part, name) for part in PARTS for name in written(part)])
def test_what_users_see_is_as_it_was_frozen(part: str, name: str) -> None:
    if problems := difference(name, now(part).get(name)):
        pytest.fail(problems, pytrace=False)


@pytest.mark.parametrize("part", PARTS)
def test_everything_that_users_see_has_a_golden_file(part: str) -> None:
    """A new command or report is frozen from its first day."""
    if problems := [difference(name, text) for name, text in now(part).items() if name not in written(part)]:
        pytest.fail("\n".join(problems), pytrace=False)


def test_every_part_has_golden_files() -> None:
    """An empty folder would compare nothing."""
    assert [part for part in (*PARTS, *TEMPLATES) if not written(part)] == []
