"""Java's regular expressions: refused with a translation that matches what Java matches."""

from __future__ import annotations

import pytest

from mirrorless.config.types import _pattern
from mirrorless.filters import NameFilter, check_pattern
from mirrorless.java_patterns import in_python

# What java.util.regex matches of each pattern; JDK 17.
JAVA = [
    # Classes within classes.
    ("[a-c[x-z]]", "(?:[a-c]|[x-z])", "a y", "d [ a]"),
    ("t-[^a-c[x-z]]", "t-(?:(?!(?:[a-c]|[x-z])).)", "t-d", "t-a t-y"),
    ("[a-z&&[^b]]+", "(?:(?=[a-z])[^b])+", "ac", "abc a&"),
    ("[a-z&&def]", "(?:(?=[a-z])[def])", "d", "a &"),
    ("[^a-z&&[def]]", "(?:(?!(?=[a-z])[def]).)", "a 1", "d"),
    # Kinds of characters.
    (r"\p{Lu}+-x", "[A-Z]+-x", "AB-x", "ab-x Lu-x"),
    (r"\p{Lower}\pN", "[a-z][0-9]", "a1", "A1 aN"),
    (r"[\p{IsAlphabetic}-]+", "[A-Za-z-]+", "A-b", "a1"),
    (r"\P{L}+", "[^A-Za-z]+", "1-", "a1"),
    (r"[\P{L}a]", "(?:[a]|[^A-Za-z])", "a 1", "b"),
    (
        r"a\H\V",
        "a[^ \\t\\xa0\\u1680\\u180e\\u2000-\\u200a\\u202f\\u205f\\u3000][^\\n\\x0b\\f\\r\\x85\\u2028\\u2029]",
        "abc",
        "a",
    ),
    (r"a\h?", r"a[ \t\xa0\u1680\u180e\u2000-\u200a\u202f\u205f\u3000]?", "a", "ah"),
    (r"a[\v.]", r"a[\n\x0b\f\r\x85\u2028\u2029.]", "a.", "av"),
    (r"a\R?", r"a(?:\r\n|[\n\x0b\f\r\x85\u2028\u2029])?", "a", "aR"),
    # Characters.
    (r"\Qa.b-c\E.*", r"a\.b\-c.*", "a.b-cd", "axb-c"),
    (r"\Qa.b", r"a\.b", "a.b", "axb"),
    (r"[\Q]-\Ea]b", r"[\]\-a]b", "-b", "cb"),
    (r"\x{41}b", r"\x41b", "Ab", "x41b"),
    (r"a\x{1F600}?", r"a\U0001f600?", "a", "b"),
    (r"\0101b", r"\x41b", "Ab", "1b"),
    (r"\cA?b", r"\x01?b", "b", "cAb"),
    (r"\e?b", r"\x1b?b", "b", "eb"),
    # Groups and places.
    (r"(?<n>a|b)-\k<n>", "(?P<n>a|b)-(?P=n)", "a-a", "a-b"),
    (r"(a|b)\123", r"(a|b)(?:\1)23", "aa23", "aS ab23"),
    (r"orders\z", r"orders\Z", "orders", "ordersz"),
    # Flags.
    ("(?d)a.*", "a.*", "ab", "b"),
    ("(?u)a.*", "a.*", "ab", "b"),
    ("(?iu)a.*", "(?i)a.*", "AB", "b"),
    ("(?U)a.*", "a.*", "ab", "b"),
    ("a(?i)b|c", "a(?i:b)|(?i:c)", "aB C", "AB"),
    ("(?i)a(?-i)b", "(?i)a(?-i:b)", "Ab", "aB"),
    ("(a(?i)b|c)d", "(a(?i:b)|(?i:c))d", "aBd Cd", "cD"),
]


@pytest.mark.parametrize(("java", "python", "taken", "left"), JAVA)
def test_what_only_java_reads_so_is_refused_with_a_translation(java: str, python: str, taken: str, left: str) -> None:
    with pytest.raises(ValueError, match="is in Java's form") as refused:
        _pattern(java)

    assert str(refused.value).endswith(f" | write `{python}`")
    names = NameFilter(include=[_pattern(python)])
    assert all(map(names.accepts, taken.split()))
    assert not any(map(names.accepts, left.split()))


@pytest.mark.parametrize(
    "pattern",
    [
        "orders-.*",
        "a|b",
        r"orders\.v[0-9]+",
        "[]a]+",
        "[^]a]+",
        r"[\[\]&-]",
        "[a&b]",
        "a++b?+c*+d{1,2}+",
        "(?>a|b)c",
        "(?:a|b)(?=c)(?!d)(?<=e)(?<!f)g",
        r"(a)\1",
        "(?i)orders",
        "(?i)(?s)orders",
        "a(?i:b)(?-i:c)",
        "(?P<name>a)(?P=name)",
        r"^a$\Z",
        r"\Aa\b\B",
        r"\d\D\w\W\s\S\t\n\x41\u0041\07\\Q",
    ],
)
def test_what_both_read_alike_is_taken_as_it_is(pattern: str) -> None:
    assert in_python(pattern) == pattern
    assert check_pattern(pattern) is None


@pytest.mark.parametrize("pattern", [r"\p{IsGreek}", r"\X", r"\G", "(?<=a+)b", "a{2}{3}", "[a", r"[\p{L}"])
def test_what_has_no_translation_is_refused_all_the_same(pattern: str) -> None:
    assert "is not a valid regular expression" in (check_pattern(pattern) or "")
