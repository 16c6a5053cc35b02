"""YAML as replication.yaml uses it: types of values, lines, duplicate keys and tags."""

from __future__ import annotations

from typing import Any

import pytest

from mirrorless.config import InvalidConfiguration
from mirrorless.config.yaml_source import read

TEXT = ["yes", "no", "on", "off", "True", "NULL", "0o17", "0x10", "1_000", "1e3", ".inf", "12:30", "2026-01-31"]
"""Values that YAML 1.1 or 1.2 gives another type."""


@pytest.mark.parametrize("directive", ["", "%YAML 1.1\n---\n", "%YAML 1.2\n---\n"])
@pytest.mark.parametrize(
    ("written", "value"),
    [
        *((text, text) for text in TEXT),
        ("true", True),
        ("false", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("12", 12),
        ("-1", -1),
        ("+3", 3),
        ("010", 10),
        ("1.5", 1.5),
        ("'12'", "12"),
        ('"true"', "true"),
        ("&anchor 12", 12),
        ("9" * 5_000, "9" * 5_000),
    ],
)
def test_a_value_has_one_meaning_whatever_the_version_of_yaml(directive: str, written: str, value: Any) -> None:
    data = read(f"{directive}key: {written}\n", origin="test").data

    assert data == {"key": value}
    assert type(data["key"]) is type(value)


def test_a_key_is_text() -> None:
    assert read("{007: a, true: b, 1.5: c, '~': d}\n", origin="test").data == {
        "007": "a",
        "true": "b",
        "1.5": "c",
        "~": "d",
    }


def test_an_alias_is_the_last_value_of_its_anchor() -> None:
    assert read("a: &x 1\nb: &x 2\nc: *x\n", origin="test").data == {"a": 1, "b": 2, "c": 2}


def test_every_key_and_entry_has_its_line() -> None:
    source = read("# first\na:\n  - b\n  - c: 1\n    d: {e: [\n      f,\n    ]}\n", origin="test")

    assert source.lines == {
        ("a",): 2,
        ("a", 0): 3,
        ("a", 1): 4,
        ("a", 1, "c"): 4,
        ("a", 1, "d"): 5,
        ("a", 1, "d", "e"): 5,
        ("a", 1, "d", "e", 0): 6,
    }
    assert source.line_of(("a", 1, "d", "missing")) == 5
    assert source.line_of(("missing",)) is None


@pytest.mark.parametrize("text", ["a: !!str 5", "a: !ours 5", "!!str a: 5", "a: [!!int '5']", "--- !!map\na: 5"])
def test_a_tag_is_refused_as_it_would_give_another_meaning(text: str) -> None:
    with pytest.raises(InvalidConfiguration, match="tags are not read"):
        read(f"{text}\n", origin="test")


def test_every_key_that_is_written_twice_is_named_with_both_lines() -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        read("a: 1\nb: {c: 1, c: 2}\na: 2\n", origin="test")

    assert [(problem.where, problem.line, problem.what) for problem in caught.value.problems] == [
        ("b.c", 2, "is written twice, first on line 2"),
        ("a", 3, "is written twice, first on line 1"),
    ]


TENFOLD = "a0: &a0 [1,1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)
)
"""Ten lines that are ten billion values."""


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("text", "says"),
    [
        (TENFOLD, r"line \d, a\d.*: here aliases \(`\*`\) have repeated 50,000 values, and more are not read"),
        ("a: &a [*a, *a, *a, *a, *a, *a, *a, *a]\n", "aliases .* have repeated 50,000 values"),
        (f"? {{{TENFOLD.replace(chr(10), ', ')}}}\n: b\n", "is a list or a section. What to do: a key is text"),
        ("&k [a]: b\n", "is a list or a section. What to do: a key is text"),
    ],
)
def test_what_aliases_repeat_is_bounded(text: str, says: str) -> None:
    """A configuration comes from a repository, and a file for `migrate config` from somebody else's."""
    with pytest.raises(InvalidConfiguration, match=says):
        read(text, origin="test")


def test_a_list_of_many_topics_may_be_shared_by_many_flows() -> None:
    topics = ", ".join(f"topic-{n}" for n in range(400))

    data = read(f"a: &a [{topics}]\n" + "".join(f"b{n}: *a\n" for n in range(100)), origin="test").data

    assert len(data["b99"]) == 400
