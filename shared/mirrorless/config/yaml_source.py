"""What does the text say? YAML as plain data, each value with its line, and no key written twice.

Only what YAML 1.2 calls so is a truth value, a number or null: `no` is a cluster alias, and a time stays text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import yaml

from mirrorless.config.problems import InvalidConfiguration, Path, Problem

_DEEPEST = 12
"""Levels of nesting at most: three times what a configuration needs."""

_KINDS = (
    (re.compile(r"null|~|"), lambda _: None),
    (re.compile(r"true|false"), lambda text: text == "true"),
    (re.compile(r"[-+]?[0-9]+"), int),
    (re.compile(r"[-+]?[0-9]*\.[0-9]+([eE][-+]?[0-9]+)?"), float),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A document that was read: its data, and the line (from 1) of every key and list entry."""

    data: Any
    lines: dict[Path, int]

    def line_of(self, path: Path) -> int | None:
        """Return the line of a field, or of the nearest section around it; None when the document has neither."""
        for length in range(len(path), 0, -1):
            if line := self.lines.get(path[:length]):
                return line
        return None


def read(text: str, *, origin: str) -> Text:
    """Read one YAML document.

    Raises:
        InvalidConfiguration: the text is not YAML, writes a key twice, or contains itself.
    """
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as exc:
        line = exc.problem_mark.line + 1 if exc.problem_mark else None
        what = f"this is not YAML: {exc.problem or exc.context}"
        problem = Problem(
            path=(), what=what, hint="look at the indentation, the colons and the quotes around here", line=line
        )
        raise InvalidConfiguration(origin, [problem]) from exc
    except RecursionError as exc:
        problem = Problem(path=(), what="this is nested too deeply", hint="look for brackets that are never closed")
        raise InvalidConfiguration(origin, [problem]) from exc
    except yaml.YAMLError as exc:
        problem = Problem(path=(), what=f"this is not YAML: {exc}", hint="save the file as UTF-8 text")
        raise InvalidConfiguration(origin, [problem]) from exc
    lines: dict[Path, int] = {}
    problems: list[Problem] = []
    data = _value(root, (), lines, problems)
    if problems:
        raise InvalidConfiguration(origin, problems)
    return Text(data=data, lines=lines)


def _value(node: yaml.Node | None, path: Path, lines: dict[Path, int], problems: list[Problem]) -> Any:
    if len(path) > _DEEPEST:
        what, hint = (
            "this is nested too deeply, or contains itself",
            "remove the `*` that leads back into its own section",
        )
        problems.append(Problem(path=path[:_DEEPEST], what=what, hint=hint, line=lines.get(path)))
        return None
    if isinstance(node, yaml.MappingNode):
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = str(key_node.value)
            place, line = (*path, key), key_node.start_mark.line + 1
            if key in found:
                what = f"is written twice, first on line {lines[place]}"
                problems.append(Problem(path=place, what=what, hint="keep one of the two", line=line))
            lines[place] = line
            found[key] = _value(value_node, place, lines, problems)
        return found
    if isinstance(node, yaml.SequenceNode):
        for index, entry in enumerate(node.value):
            lines[*path, index] = entry.start_mark.line + 1
        return [_value(entry, (*path, index), lines, problems) for index, entry in enumerate(node.value)]
    if isinstance(node, yaml.ScalarNode):
        return _scalar(node)
    return None


def _scalar(node: yaml.ScalarNode) -> Any:
    text = str(node.value)
    if node.style is None:
        for kind, read_as in _KINDS:
            if kind.fullmatch(text):
                return read_as(text)
    return text
