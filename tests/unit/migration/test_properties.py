"""Property files as Java reads them: each expectation is what `java.util.Properties` of Java 17 answers."""

from __future__ import annotations

import pytest

from mirrorless.errors import ConfigurationError
from mirrorless.flow.java_properties import read_properties


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=1\nb:2\nc 3\nd\n", {"a": "1", "b": "2", "c": "3", "d": ""}),
        (" a \t=\f 1 \r\nb==2\rc: :3", {"a": "1 ", "b": "=2", "c": ":3"}),
        ("# a=1\n  ! b=2\nc=#3\n\n", {"c": "#3"}),
        ("a=1\na=2\n", {"a": "2"}),
        ("A->B.topics = x\\\n   ,y\\\n\nb=1", {"A->B.topics": "x,y", "b": "1"}),
        ("a=1\\\n# 2\nb=1\\\\\nc=2", {"a": "1# 2", "b": "1\\", "c": "2"}),
        ("\\\n# a\nb=1", {"b": "1"}),
        (r"a\ b\=c\:d=x\ty\nz\q\-\\", {"a b=c:d": "x\ty\nzq-\\"}),
        (r"a=caf\u00e9 \ud83d\ude00 \u0041", {"a": "café 😀 A"}),
        ('"a" = ""\n', {'"a"': '""'}),
        ("a=.*[\\-\\.]internal, .*\\.replica", {"a": ".*[-.]internal, .*.replica"}),
        ("a=é", {"a": "Ã©"}),
    ],
)
def test_a_file_is_read_as_java_reads_it(text: str, expected: dict[str, str]) -> None:
    """Its bytes are of ISO-8859-1, whatever the editor thought."""
    assert read_properties(text.encode(), origin="mm2") == expected


def test_what_java_refuses_is_refused_by_the_name_of_its_key() -> None:
    with pytest.raises(ConfigurationError, match=r"mm2 a: a `\\u` has no four digits"):
        read_properties(rb"a=\u00z9", origin="mm2")
