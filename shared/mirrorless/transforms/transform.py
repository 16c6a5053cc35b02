"""The effect of a rule on a record: a new record, or none. Pure, and the same for the same record at the same place.

keep -> fields or value -> headers -> key -> one's own function

`keep` is a JMESPath expression over a record, which is decoded as far as the expression reads it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import jmespath
from jmespath.exceptions import ArityError, JMESPathError, JMESPathTypeError, UnknownFunctionError
from jmespath.functions import Functions
from jmespath.visitor import TreeInterpreter

from mirrorless.errors import ConfigurationError, MirrorlessError
from mirrorless.records.record import Headers, Record
from mirrorless.transforms.avro_fields import AvroFields, WriterSchemas
from mirrorless.transforms.json_fields import json_fields, json_value
from mirrorless.transforms.masks import KeysInUse, TransformFailed, bytes_change, kind_of
from mirrorless.transforms.paths import tree_of
from mirrorless.transforms.rules import Action, KeyRing, Mask, Rule, RuleInForce

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
            raise _no_expression(f"no JMESPath: {exc}") from exc
        _check_functions(self._tree)
        read = list(_read(self._tree))
        self._parts = {part for part, _ in read}
        if unknown := sorted(self._parts.difference(PARTS)):
            raise _no_expression(f"a record has no {', '.join(unknown)}")
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
            raise _no_expression(str(exc)) from exc
        except JMESPathTypeError:
            pass  # null is no argument of most
    for child in tree["children"]:
        _check_functions(child)


def _no_expression(what: str) -> ConfigurationError:
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


__all__ = ["TopicTransform", "TransformFailed", "check_rule", "function_hash", "make_ready"]

RecordStep = Callable[[Record, int], Record | None]
"""Of a record and its partition; it changes no record."""

ValueChange = Callable[[bytes, int, int, str], bytes | None]
"""Of a value, its partition, its offset and the path that errors begin with."""

_FUNCTION: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicTransform:
    """A rule, made ready for one source topic."""

    in_force: RuleInForce
    id: bytes
    """See `RuleInForce.id`."""
    value_of: Callable[[bytes], Any]
    """All of a value's content, by the rule's format. Raises as `apply`."""
    _steps: tuple[tuple[str, RecordStep], ...]

    def apply(self, record: Record, partition: int) -> Record | None:
        """The record as it is copied; None: it is left out. The record itself is not changed.

        Raises:
            TransformFailed: the rule cannot be applied to it.
            Retriable: the registry of its writer's schema does not answer.
        """
        changed = record
        for part, step in self._steps:
            try:
                result = step(changed, partition)
            except TransformFailed as failed:
                words = str(failed)
            except MirrorlessError:  # of a registry, or of the secret for it: it is about no record
                raise
            except Exception as failed:  # noqa: BLE001 -- whatever it is, its words and its frames may have a value
                words = f"{part} ended with {type(failed).__name__}"
            else:
                if result is None:
                    return None
                changed = result
                continue
            raise TransformFailed(words)  # outside of the handlers, so that nothing is chained to it
        return changed


def make_ready(
    in_force: RuleInForce, keys: Mapping[str, KeyRing], topic: str, schemas: WriterSchemas | None = None
) -> TopicTransform:
    """Compile a rule for a source topic, whose name is part of the nonces.

    Args:
        in_force: the rule, with the versions of the keys.
        keys: by name, with those versions' material.
        topic: of the source.
        schemas: of the source's registry, where it has one.

    Raises:
        ConfigurationError: a key lacks a version, Avro a registry; an expression, a path or a function is wrong.
    """
    rule = in_force.rule
    check_rule(rule)
    in_use = KeysInUse(rings=_rings(in_force, keys), topic=topic)
    steps: list[tuple[str, RecordStep]] = []
    keep = Keep(rule.keep) if rule.keep else None
    edit, value_of, whole = _of_format(rule, keep, in_use, schemas)
    if keep:
        steps.append(("keep", _kept(keep, value_of, passes_tombstones=rule.tombstones == "pass")))
    if rule.fields:
        steps.append(("fields", _value(edit)))
    if isinstance(rule.value, Mask):
        seals = rule.value.encrypt != ""
        steps.append(
            ("value", _value(in_use.seal_of(rule.value) if seals else bytes_change(rule.value, "value", in_use)))
        )
    if rule.headers:
        steps.append(("headers", _headers(rule.headers, in_use)))
    if rule.key is not None:
        steps.append(("key", _key(rule.key, in_use)))
    if rule.function:
        steps.append(("function", _own(in_force)))
    return TopicTransform(in_force=in_force, id=in_force.id, value_of=whole, _steps=tuple(steps))


def check_rule(rule: Rule) -> None:
    """Find what is wrong about a rule without its keys and its own function.

    Raises:
        ConfigurationError: `where` is the part of the rule, and the path or name in it.
    """
    for part, actions in (("fields", rule.fields), ("headers", rule.headers)):
        for name, action in actions.items():
            kind_of(action, f"{part}: {name}")
    if rule.fields:
        tree_of(rule.fields)
    looks_into_values = bool(rule.fields) or bool(rule.keep and Keep(rule.keep).reads_value)
    key, value = (action and kind_of(action, part) for part, action in (("key", rule.key), ("value", rule.value)))
    if rule.format == "bytes" and looks_into_values:
        raise _wrong("format", "fields and keep look into values", "name the values' format, or leave out both")
    if rule.format != "bytes" and value:
        raise _wrong("value", "it is for bytes only", "add format: bytes, or name fields")
    if value == "drop" or (isinstance(rule.value, Mask) and rule.value.set is None):
        raise _wrong("value", "a record without a value is a tombstone, which deletes its key", 'use {set: ""}')
    if key not in {None, "drop", "hmac"}:
        raise _wrong("key", "compaction goes by the key, and only equal keys stay equal", "use drop or hmac")
    if rule.function and not _FUNCTION.fullmatch(rule.function):
        raise _wrong("function", f"{rule.function} is no function's name", "write package.module:function")


def function_hash(name: str) -> str:
    """SHA-256 of the source of a function's module, or of its whole package, in hex: a module may use its neighbours.

    Args:
        name: `package.module:function`.

    Raises:
        ConfigurationError: there is no such module, or it has no source.
    """
    module = name.partition(":")[0]
    try:
        found = find_spec(module)
        if found is None or found.origin is None:
            raise ModuleNotFoundError(module)
        file = Path(found.origin)
        if "." not in module:
            return sha256(file.read_bytes()).hexdigest()
        package = file.parents[module.count(".") - (file.stem != "__init__")]
        sources = {path.relative_to(package).as_posix(): path for path in package.rglob("*.py")}
        return sha256(
            b"".join(b"%b\0%b" % (name.encode(), sources[name].read_bytes()) for name in sorted(sources))
        ).hexdigest()
    except (ImportError, OSError, ValueError) as exc:
        raise _no_function(name) from exc


def _rings(in_force: RuleInForce, keys: Mapping[str, KeyRing]) -> dict[str, KeyRing]:
    rings = {}
    for name in sorted(in_force.rule.keys):
        version = in_force.key_versions.get(name, 0)
        if name not in keys or version not in keys[name].material:
            raise _wrong(
                f"keys: {name}",
                f"it has no version {version}, by which the rule's records are changed",
                "put it into the key's secret; a version stays there as long as records by it are to be proved",
            )
        rings[name] = keys[name].of(version)
    return rings


def _of_format(
    rule: Rule, keep: Keep | None, keys: KeysInUse, schemas: WriterSchemas | None
) -> tuple[ValueChange, Callable[[bytes], Any], Callable[[bytes], Any]]:
    """How values of the rule's format are changed by its fields, decoded for `keep`, and decoded whole."""
    tree = tree_of(rule.fields) if rule.fields else "pass"
    if rule.format != "avro":
        return json_fields(tree, keys), json_value, json_value
    if schemas is None:
        raise _wrong("format", "nothing says where Avro's schemas are", "give the source a schema.registry")
    avro = AvroFields(tree, keys, schemas, keep.members if keep else None)
    whole = AvroFields("pass", keys, schemas).decoded
    return lambda value, partition, offset, _path: avro.edited(value, partition, offset), avro.decoded, whole


def _kept(keep: Keep, value_of: Callable[[bytes], Any], *, passes_tombstones: bool) -> RecordStep:
    def kept(record: Record, partition: int) -> Record | None:
        if passes_tombstones and record.value is None:
            return record
        return record if keep.holds(record, partition, value_of) else None

    return kept


def _value(change: ValueChange) -> RecordStep:
    def changed(record: Record, partition: int) -> Record:
        if record.value is None:
            return record
        value = change(record.value, partition, record.offset, "value")
        return Record(record.offset, record.timestamp, record.headers, record.key, value)

    return changed


def _headers(actions: Mapping[str, Action], keys: KeysInUse) -> RecordStep:
    changes = {
        name: bytes_change(action, f"headers: {name}", keys) if isinstance(action, Mask) else action
        for name, action in actions.items()
    }
    others = changes.get("*", "pass")

    def changed(record: Record, partition: int) -> Record:
        headers: Headers = []
        for index, (name, content) in enumerate(record.headers):
            change = changes.get(name, others)
            if not isinstance(change, str):
                headers.append((name, change(content, partition, record.offset, f"headers[{index}]")))
            elif change == "pass":
                headers.append((name, content))
        return Record(record.offset, record.timestamp, headers, record.key, record.value)

    return changed


def _key(action: Action, keys: KeysInUse) -> RecordStep:
    change = bytes_change(action, "key", keys) if isinstance(action, Mask) else None

    def changed(record: Record, partition: int) -> Record:
        key = change(record.key, partition, record.offset, "key") if change else None
        return Record(record.offset, record.timestamp, record.headers, key, record.value)

    return changed


def _own(in_force: RuleInForce) -> RecordStep:
    name = in_force.rule.function
    if function_hash(name) != in_force.function_hash:
        raise _wrong(
            "function",
            f"the source of {name} is not that by which the rule's records are changed",
            "use the package in its version of that time",
        )
    module, _, attribute = name.partition(":")
    try:
        function = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as exc:
        raise _no_function(name) from exc

    def called(record: Record, _partition: int) -> Record | None:
        given = Record(record.offset, record.timestamp, list(record.headers), record.key, record.value)
        try:
            result = function(given)
            fits = result is None or _is_copy(result, record)
        except Exception as exc:  # noqa: BLE001 -- as in `apply`; and it may raise TransformFailed in its own words
            raise TransformFailed(f"{name} ended with {type(exc).__name__}") from None
        if not fits:
            raise TransformFailed(f"{name} gave no record of bytes with the offset and the timestamp of its own")
        return result  # type: ignore[no-any-return]

    return called


def _is_copy(result: Any, record: Record) -> bool:
    if not isinstance(result, Record) or (result.offset, result.timestamp) != (record.offset, record.timestamp):
        return False
    headers: Any = result.headers
    texts: list[Any] = [name for name, _ in headers]
    contents: list[Any] = [result.key, result.value, *(content for _, content in headers)]
    return (
        isinstance(headers, list)
        and all(isinstance(text, str) for text in texts)
        and all(isinstance(content, bytes | None) for content in contents)
    )


def _no_function(name: str) -> ConfigurationError:
    return _wrong("function", f"{name} cannot be imported", "put its package beside mirrorless, in each bundle")


def _wrong(where: str, what: str, hint: str) -> ConfigurationError:
    return ConfigurationError(what, where=where, hint=hint)
