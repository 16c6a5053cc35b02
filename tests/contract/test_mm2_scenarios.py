"""docs/reference/mm2-scenarios.md names tests of ours: each of them exists."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "mm2-scenarios.md"
NAMED = re.compile(r"`(\w+(?:/\w+)*\.py)`|`(test_\w+)`")


def test_every_test_that_the_page_names_exists() -> None:
    where, missing, found = "", [], 0
    for line in PAGE.read_text().splitlines():
        for file, test in NAMED.findall(line):
            if file:
                where = file
                assert (ROOT / "tests" / where).is_file(), where
            else:
                found += 1
                if test not in _tests(where):
                    missing.append(f"{where}: {test}")
    assert not missing
    assert found > 90


@cache
def _tests(file: str) -> set[str]:
    return set(re.findall(r"^ *def (test_\w+)\(", (ROOT / "tests" / file).read_text(), re.MULTILINE))
