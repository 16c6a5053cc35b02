"""Java's property files, as `java.util.Properties` reads them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from mirrorless.errors import ConfigurationError

_BLANKS = " \t\f"
_LINE_END = re.compile(r"\r\n|\r|\n")
_KEY_AND_VALUE = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)", re.DOTALL)
_LETTERS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def read_properties(data: bytes, *, origin: str) -> dict[str, str]:
    r"""Read a file: the last of the same keys holds, as in Java. Bytes are characters of ISO-8859-1.

    Raises:
        ConfigurationError: a `\u` without four digits, which Java refuses too.
    """
    found: dict[str, str] = {}
    for line in _logical_lines(data.decode("latin-1")):
        key, value = _KEY_AND_VALUE.findall(line)[0]
        try:
            found[_unescaped(key)] = _unescaped(value)
        except ValueError as exc:
            hint = "write four hexadecimal digits behind `\\u`, or two backslashes"
            raise ConfigurationError("a `\\u` has no four digits", where=f"{origin} {key}", hint=hint) from exc
    return found


def _logical_lines(text: str) -> Iterator[str]:
    """The lines that are no comments, each with those that go on behind a backslash at its end."""
    line = ""
    for written in _LINE_END.split(text):
        part = written.lstrip(_BLANKS)
        if not line and (not part or part[0] in "#!"):
            continue
        line += part
        if (len(part) - len(part.rstrip("\\"))) % 2:
            line = line[:-1]
        else:
            yield line
            line = ""
    if line:
        yield line


def _unescaped(text: str) -> str:
    def character(found: re.Match[str]) -> str:
        escaped = found[1]
        if escaped == "u":
            raise ValueError(text)
        return chr(int(escaped[1:], 16)) if escaped[0] == "u" and escaped[1:] else _LETTERS.get(escaped, escaped)

    # Java's characters are of UTF-16: one beyond it is written as two.
    return _ESCAPE.sub(character, text).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
