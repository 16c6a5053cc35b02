"""A YAML document as plain data, with the line of every key and list entry; no key is written twice.

The one place that reads YAML. What aliases (`*`) repeat is bounded: a few lines of them could be billions of values.
Only null, `true`, `false` and decimal numbers have a type: fewer than in YAML 1.1 and 1.2. Keys and all else are text.
So `no` can be an alias, a time stays text, and `0x10`, `1_000` and `1e3` are no numbers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.composer import MaxDepthExceededError
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from mirrorless.config.problems import InvalidConfiguration, Path, Problem

_DEEPEST = 12
"""Levels of nesting at most: three times what a configuration needs."""
_DEEPEST_PARSED = 50
"""Levels at which the parser gives up. In between, the problem names the section that is nested too deeply."""
_MOST_REPEATED = 50_000
"""Values that are there once more by an alias, at most."""

_PLAIN = (
    (re.compile(r"null|~|"), lambda _: None),
    (re.compile(r"true|false"), lambda text: text == "true"),
    (re.compile(r"[-+]?[0-9]{1,100}"), int),
    (re.compile(r"[-+]?[0-9]*\.[0-9]+([eE][-+]?[0-9]+)?"), float),
)
"""Plain scalars that are no text, and their values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class YamlSource:
    """A document that was read: its data, and the line (from 1) of every key and list entry."""

    data: Any
    lines: dict[Path, int]

    def line_of(self, path: Path) -> int | None:
        """Return the line of a field, or of the nearest section around it; None when the document has neither."""
        for length in range(len(path), 0, -1):
            if line := self.lines.get(path[:length]):
                return line
        return None


def read(text: str, *, origin: str) -> YamlSource:
    """Read one YAML document.

    Raises:
        InvalidConfiguration: the text is not YAML, has a key twice or a tag, repeats too much, or contains itself.
    """
    reader = _Reader(origin=origin)
    data = reader.value(compose(text, origin=origin), (), 1)
    if reader.problems:
        raise InvalidConfiguration(origin, reader.problems)
    return YamlSource(data=data, lines=reader.lines)


def compose(text: str, *, origin: str) -> Node | None:
    """The nodes of one YAML document, with their places in the text; an alias is the node that it stands for.

    Raises:
        InvalidConfiguration: the text is not YAML.
    """
    parser = YAML(typ="safe", pure=True)
    parser.max_depth = _DEEPEST_PARSED
    parser.composer.warn_double_anchors = False  # YAML 1.2 allows them; an alias is the anchor before it
    try:
        return parser.compose(text)  # type: ignore[no-any-return]  # it says nothing of its type
    except MaxDepthExceededError as exc:
        hint = "look for brackets that are never closed"
        raise InvalidConfiguration(origin, [Problem(path=(), what="this is nested too deeply", hint=hint)]) from exc
    except MarkedYAMLError as exc:
        line = exc.problem_mark.line + 1 if exc.problem_mark else None
        what = f"this is not YAML: {exc.problem or exc.context}"
        hint = "look at the indentation, the colons and the quotes around here"
        raise InvalidConfiguration(origin, [Problem(path=(), what=what, hint=hint, line=line)]) from exc
    except YAMLError as exc:
        problem = Problem(path=(), what=f"this is not YAML: {exc}", hint="save the file as UTF-8 text")
        raise InvalidConfiguration(origin, [problem]) from exc


@dataclass(slots=True)
class _Reader:
    """The way through a document's nodes: the lines passed and the problems found."""

    origin: str
    lines: dict[Path, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    _passed: set[int] = field(default_factory=set)
    _repeated: int = 0

    def value(self, node: Node | None, path: Path, line: int) -> Any:
        """Return the value of the node at a path, which begins on a line.

        Raises:
            InvalidConfiguration: aliases repeat too much.
        """
        if node is None:
            return None
        self._repeated += id(node) in self._passed
        self._passed.add(id(node))
        if self._repeated > _MOST_REPEATED:
            what = f"here aliases (`*`) have repeated {_MOST_REPEATED:,} values, and more are not read"
            hint = "write out what an alias stands for, or write it once under `defaults`"
            raise InvalidConfiguration(self.origin, [Problem(path=path, what=what, hint=hint, line=line)])
        if len(path) > _DEEPEST:
            hint = "remove the `*` that leads back into its own section"
            self._add(path[:_DEEPEST], "this is nested too deeply, or contains itself", hint, line)
            return None
        self._check_tag(node, path, line)
        if isinstance(node, MappingNode):
            return self._mapping(node, path)
        if isinstance(node, SequenceNode):
            return [self._placed(entry, entry, (*path, index)) for index, entry in enumerate(node.value)]
        return _scalar(node) if isinstance(node, ScalarNode) else None

    def _mapping(self, node: MappingNode, path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            is_text = isinstance(key_node, ScalarNode)
            place = (*path, key := str(key_node.value) if is_text else "?")
            if not is_text:
                self._add(place, "is a list or a section", "a key is text", key_node.start_mark.line + 1)
            elif key in found:
                what = f"is written twice, first on line {self.lines[place]}"
                self._add(place, what, "keep one of the two", key_node.start_mark.line + 1)
            self._check_tag(key_node, place, key_node.start_mark.line + 1)
            found[key] = self._placed(value_node, key_node, place)
        return found

    def _placed(self, node: Node, at: Node, path: Path) -> Any:
        self.lines[path] = line = at.start_mark.line + 1
        return self.value(node, path, line)

    def _check_tag(self, node: Node, path: Path, line: int) -> None:
        """Refuse a tag: it would give its value another meaning. One that is not written has no handle."""
        if node.ctag.handle is not None or str(node.tag).startswith("!"):
            self._add(path, f"has the tag `{node.tag}`, and tags are not read", "remove it; quotes make text", line)

    def _add(self, path: Path, what: str, hint: str, line: int) -> None:
        self.problems.append(Problem(path=path, what=what, hint=hint, line=line))


def _scalar(node: ScalarNode) -> Any:
    text = str(node.value)
    if node.style is None:
        for kind, value_of in _PLAIN:
            if kind.fullmatch(text):
                return value_of(text)
    return text
