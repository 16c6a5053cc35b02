"""The condition of `keep`: a JMESPath expression over a record, which is decoded as far as the expression reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import jmespath
from jmespath.exceptions import ArityError, JMESPathError, JMESPathTypeError, UnknownFunctionError
from jmespath.functions import Functions
from jmespath.visitor import TreeInterpreter

from mirrorless.errors import ConfigurationError
from mirrorless.records.record import Record
from mirrorless.transforms.masks import TransformFailed

PARTS: Final = ("key", "value", "headers", "partition", "timestamp")

_FIRST_ONLY: Final = frozenset(
    {"subexpression", "pipe", "index_expression", "projection", "value_projection", "filter_projection", "flatten"}
)
"""What comes behind their first child sees what that gives, and not the record."""
_CONSTANT: Final = frozenset({"literal", "expref", "index", "slice"})


class Keep:
    """An expression, compiled."""

    def __init__(self, expression: str) -> None:
        """Raises ConfigurationError: it is none, or it reads what a record does not have."""
        try:
            self._tree: dict[str, Any] = jmespath.compile(expression).parsed
        except JMESPathError as exc:
            raise _wrong(f"no JMESPath: {exc}") from exc
        _check_functions(self._tree)
        read = list(_read(self._tree))
        self._parts = {part for part, _ in read}
        if unknown := sorted(self._parts.difference(PARTS)):
            raise _wrong(f"a record has no {', '.join(unknown)}")
        self._headers = {name for part, name in read if part == "headers"}
        named = {name for part, name in read if part == "value"}
        self.members = None if None in named else frozenset(filter(None, named))
        """The names at the top of a value that it reads; None: it reads all of it."""
        self._visit = TreeInterpreter().visit

    @property
    def reads_value(self) -> bool:
        """Whether it is about the value too."""
        return "value" in self._parts

    def holds(self, record: Record, partition: int, value_of: Callable[[bytes], Any]) -> bool:
        """Whether the record is to be copied.

        Args:
            record: as it is on the source.
            partition: of the source.
            value_of: decodes a value.

        Raises:
            TransformFailed: what the expression reads of it is no text, or no such value.
        """
        seen: dict[str, Any] = {"partition": partition, "timestamp": record.timestamp}
        if "key" in self._parts:
            seen["key"] = _text(record.key, "the key")
        if "headers" in self._parts:
            last = {name: value for name, value in record.headers if not self._headers.isdisjoint((name, None))}
            seen["headers"] = {name: _text(value, "a header") for name, value in last.items()}
        if self.reads_value and record.value is not None:
            seen["value"] = value_of(record.value)
        result = self._visit(self._tree, seen)
        return not (result is None or result is False or result in ("", [], {}))


def _read(tree: dict[str, Any]) -> Iterator[tuple[str, str | None]]:
    """The parts of a record that an expression reads, and of the headers which, or None for all of them."""
    kind, children = tree["type"], tree["children"]
    if kind == "field":
        yield tree["value"], None
    elif kind in {"current", "identity"}:
        yield from ((part, None) for part in PARTS)
    elif kind == "subexpression" and children[0]["type"] == children[1]["type"] == "field":
        yield children[0]["value"], children[1]["value"]
    elif kind not in _CONSTANT:
        for child in children[:1] if kind in _FIRST_ONLY else children:
            yield from _read(child)


def _check_functions(tree: Any) -> None:
    """JMESPath itself finds a function that there is not only when it calls it, for each record again."""
    if not isinstance(tree, dict):  # a bound of a slice
        return
    if tree["type"] == "function_expression":
        try:
            Functions().call_function(tree["value"], [None] * len(tree["children"]))
        except (UnknownFunctionError, ArityError) as exc:
            raise _wrong(str(exc)) from exc
        except JMESPathTypeError:
            pass  # null is no argument of most
    for child in tree["children"]:
        _check_functions(child)


def _wrong(what: str) -> ConfigurationError:
    return ConfigurationError(
        what,
        where="keep",
        hint=f"write JMESPath over {', '.join(PARTS)}; constants are 'text', `17`, `true`, `null`: value.age > `17`",
    )


def _text(content: bytes | None, what: str) -> str | None:
    try:
        return None if content is None else content.decode()
    except UnicodeDecodeError:
        raise TransformFailed(f"{what} that keep reads is no UTF-8 text") from None
