r"""Java's regular expressions in Python's form.

The lists of replication.yaml often come from MirrorMaker 2. What Java reads in another way than Python, or Python does
not have, is translated here; what both read alike stays as it is. `\p{...}` stands for its characters in ASCII, of
which topic names are made.
"""

from __future__ import annotations

import re
from typing import Final

_LINE_ENDS: Final = r"\n\x0b\f\r\x85\u2028\u2029"

CLASSES: Final = {
    "h": r" \t\xa0\u1680\u180e\u2000-\u200a\u202f\u205f\u3000",
    "v": _LINE_ENDS,
}
"""Escapes that stand for one of some characters; their capitals stand for any other."""

_SETS: Final = (
    ("A-Z", "Lu Upper Uppercase javaUpperCase"),
    ("a-z", "Ll Lower Lowercase javaLowerCase"),
    ("A-Za-z", "L LC Alpha Alphabetic Letter Latin javaLetter javaAlphabetic"),
    ("0-9", "N Nd Digit javaDigit"),
    ("A-Za-z0-9", "Alnum javaLetterOrDigit"),
    ("0-9A-Fa-f", "XDigit Hex_Digit"),
    (r"!-#%-*,-/:;?@\[-\]_{}", "P Punctuation"),
    (r"!-/:-@\[-`{-~", "Punct"),
    ("-", "Pd"),
    ("_", "Pc"),
    (r"$+<->\^`|~", "S"),
    (r"\s", "Space White_Space javaWhitespace"),
    (r" \t", "Blank"),
    (" ", "Z Zs"),
    (r"\x00-\x7f", "ASCII"),
    ("!-~", "Graph"),
    (" -~", "Print"),
    (r"\x00-\x1f\x7f", "Cntrl Cc"),
)
PROPERTIES: Final = {name: characters for characters, names in _SETS for name in names.split()}
"""`\\p{name}`, within ASCII."""

ESCAPES: Final = {
    "R": rf"(?:\r\n|[{_LINE_ENDS}])",
    "e": r"\x1b",
    "z": r"\Z",
}
"""Other escapes of one letter."""

_TOKEN: Final = re.compile(
    r"""
      \\Q (?P<quoted>.*?) (?:\\E|\Z)
    | \\(?P<sign>[pP]) (?: \{ (?:(?:gc|general_category)=|Is)? (?P<property>\w+) \} | (?P<letter>[A-Z]) )
    | \\x\{ (?P<hex>[0-9A-Fa-f]{1,6}) \}
    | \\0 (?P<octal>[0-3][0-7]{2})
    | \\(?P<reference>[1-9]) (?P<digits>[0-7]{2})
    | \\c (?P<control>[@-_])
    | \\k< (?P<back>\w+) >
    | \\(?P<class>[hHvV])
    | \\(?P<escape>[Rez])
    | \\ .
    | \(\?< (?P<group>[A-Za-z][A-Za-z0-9]*) >
    | \(\? (?P<flags>[A-Za-z]*(?:-[A-Za-z]+)?) (?P<scope>[:)])
    | .
    """,
    re.VERBOSE | re.DOTALL,
)


def in_python(pattern: str) -> str:
    """Translate a regular expression of Java's; the same text where Python reads it as Java does."""
    return _Translation(pattern).whole()


class _Translation:
    """One pass over a pattern."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0

    def whole(self) -> str:
        """The whole pattern."""
        written: list[str] = []
        # Flags that begin within a group hold to its end, over its alternatives: Python has them with a colon only.
        flags: list[list[str]] = [[]]
        begun = False
        while token := self._next():
            text = token[0]
            if text == "[":
                written.append(self._class())
            elif text == "|":
                written.append(")" * len(flags[-1]) + "|" + "".join(flags[-1]))
            elif text == ")":
                written.append(")" * len(flags.pop() if len(flags) > 1 else flags[0]) + ")")
            elif token["scope"] == ")":
                begin = _flags(token)
                if begin and (begun or "-" in begin):
                    flags[-1].append(begin := begin.replace(")", ":"))
                written.append(begin)
                continue
            else:
                if text.startswith("(") or token["group"]:
                    flags.append([])
                written.append(_outside(token))
            begun = True
        return "".join(written) + ")" * len(flags[-1])

    def _next(self) -> re.Match[str] | None:
        token = _TOKEN.match(self._pattern, self._at)
        self._at = token.end() if token else self._at
        return token

    def _class(self) -> str:
        """A bracketed class, whose `[` was read: one that Python has, or a group that matches one character."""
        begin = self._at
        negated = self._pattern.startswith("^", begin)
        self._at += negated
        terms: list[tuple[list[str], list[str]]] = [([], [])]
        if self._pattern.startswith("]", self._at):
            terms[0][0].append("]")
            self._at += 1
        while token := self._next():
            text, (plain, others) = token[0], terms[-1]
            if text == "]":
                return _one_character(terms, negated=negated)
            if text == "[":
                others.append(self._class())
            elif text == "&" and self._pattern.startswith("&", self._at):
                self._at += 1
                terms.append(([], []))
            else:
                within = _within(token)
                (others if within.startswith("[^") else plain).append(within)
        return f"[{self._pattern[begin:]}"  # without an end: Python refuses it


def _one_character(terms: list[tuple[list[str], list[str]]], *, negated: bool) -> str:
    """The intersection of unions of characters and other classes."""
    unions = []
    for plain, others in terms:
        union = ([f"[{''.join(plain)}]"] if plain else []) + others
        if union:
            unions.append(union[0] if len(union) == 1 else f"(?:{'|'.join(union)})")
    (*conditions, last) = unions or ["[]"]
    if negated and len(terms) == 1 and not terms[0][1]:
        return f"[^{last[1:]}"
    met = "".join(f"(?={condition})" for condition in conditions) + last
    if negated:
        return f"(?:(?!{met}).)"
    return f"(?:{met})" if conditions else met


def _outside(token: re.Match[str]) -> str:
    """A token outside of brackets."""
    if token["property"] or token["letter"] or token["class"]:
        within = _within(token)
        return within if within.startswith(("[", "\\p", "\\P")) else f"[{within}]"
    if token["group"]:
        return f"(?P<{token['group']}>"
    if token["back"]:
        return f"(?P={token['back']})"
    if token["reference"]:
        return rf"(?:\{token['reference']}){token['digits']}"
    if token["scope"]:
        return _flags(token)
    return _within(token)


def _within(token: re.Match[str]) -> str:
    """A token within brackets, as members of the class; a negated one as a class of its own."""
    text = token[0]
    if token["quoted"] is not None:
        text = re.sub(r"([][\\^$.|?*+(){}&~#-])", r"\\\1", token["quoted"])
    elif name := token["property"] or token["letter"]:
        if members := PROPERTIES.get(name):
            text = members if token["sign"] == "p" else f"[^{members}]"
    elif kind := token["class"]:
        members = CLASSES[kind.lower()]
        text = members if kind.islower() else f"[^{members}]"
    elif token["escape"]:
        text = ESCAPES[token["escape"]]
    elif token["hex"]:
        text = _character(int(token["hex"], 16))
    elif token["octal"]:
        text = _character(int(token["octal"], 8))
    elif token["control"]:
        text = _character(ord(token["control"]) ^ 64)
    return text


def _character(code: int) -> str:
    """A character by its number, with as many digits as Python's escape has."""
    sign, digits = next((sign, digits) for sign, digits in (("x", 2), ("u", 4), ("U", 8)) if code < 16**digits)
    return f"\\{sign}{code:0{digits}x}"


def _flags(token: re.Match[str]) -> str:
    """Inline flags without `d`, `u` and `U`: names have no line ends, and beyond ASCII nothing is matched by kind."""
    kept = re.sub("[duU]", "", token["flags"]).removesuffix("-")
    return f"(?{kept}{token['scope']}" if kept or token["scope"] == ":" else ""
