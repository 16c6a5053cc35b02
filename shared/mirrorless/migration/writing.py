"""The text of a converted configuration: YAML with comments, and behind it every key that has no counterpart."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from textwrap import wrap
from typing import Any, Final

from mirrorless.config.problems import Path
from mirrorless.migration.answers import Conversion, Outcome
from mirrorless.migration.keys import may_be_shown
from mirrorless.migration.mirrors import GivenKey

_WIDTH: Final = 116
_PLAIN: Final = re.compile(r"(?!(?:null|true|false)$)[A-Za-z_][\w./:>-]*")
_CONTROL: Final = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160), 0x2028, 0x2029)}
"""What would end a comment, or what a terminal obeys."""

_HEADS: Final[dict[Outcome, str]] = {
    "blank": "Secrets, whose values are not written here",
    "instead": "Without a counterpart, and what there is instead",
    "ignored": "MirrorMaker ignored these, too",
}

_FIRST: Final = (
    "Made of a configuration of MirrorMaker 2. What has no value is to be filled in: `mirrorless config check FILE`.",
    "Of an MSK cluster write `msk.cluster.arn`, which has its region and account. Of brokers in a VPC, add `vpc`.",
)


def configuration_text(made: Conversion) -> str:
    """The whole text."""
    return "\n".join([*(f"# {each}" for each in _FIRST), *_section(made, made.document, ()), *_without(made), ""])


def _section(made: Conversion, section: dict[str, Any], path: Path) -> Iterator[str]:
    indent = "  " * len(path)
    for key, value in section.items():
        yield from [] if path else [""]
        for said in made.comments.get((*path, key), []):
            yield from _comment(said, indent)
        if isinstance(value, dict) and value:
            yield f"{indent}{_scalar(key)}:"
            yield from _section(made, value, (*path, key))
        else:
            yield f"{indent}{_scalar(key)}: {_value(value)}".rstrip()


def _value(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_scalar, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else "{}" if value == {} else _scalar(value)


def _scalar(value: Any) -> str:
    """A number, or a text as YAML has it."""
    text = str(value)
    if not isinstance(value, str) or _PLAIN.fullmatch(text):
        return text
    if text.translate(_CONTROL) == text:
        return "'" + text.replace("'", "''") + "'"
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').translate(_CONTROL) + '"'


def _comment(text: str, indent: str = "") -> list[str]:
    return wrap(text.translate(_CONTROL), _WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}#   ")


def _without(made: Conversion) -> Iterator[str]:
    """Every key that has no counterpart, below what there is instead."""
    several = len({each.file for each in made.given}) > 1
    for outcome, head in _HEADS.items():
        grouped: dict[str, list[GivenKey]] = defaultdict(list)
        for each in made.given:
            if made.answers[each].outcome == outcome:
                grouped[made.answers[each].why].append(each)
        yield from ["", *_comment(f"{head}:")] if grouped else []
        for why, keys in grouped.items():
            yield from ["#", *_comment(why)]
            for each in keys:
                shown = f" = {each.value}" if may_be_shown(each) else ""
                where = f"{each.file}: " if several else ""
                yield f"#     {where}{each.key}{shown}".translate(_CONTROL)
