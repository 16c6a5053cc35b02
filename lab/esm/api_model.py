"""Request validation by an API's own model: types, ranges, patterns and enumerations from botocore.

botocore itself validates types, required parameters and lower bounds; AWS validates all of it. The service's model is
the only list of these constraints here: when AWS changes it, so does the lab. Rules that tie several fields together
are not in the model; those of event source mappings stand in `lab.esm.mapping_api`.
"""

from __future__ import annotations

import datetime as dt
import io
import re
from functools import cache
from typing import TYPE_CHECKING, Any

import botocore.session

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_TYPES: dict[str, type | tuple[type, ...]] = {
    "structure": dict,
    "map": dict,
    "list": (list, tuple),
    "string": str,
    "integer": int,
    "long": int,
    "float": (int, float),
    "double": (int, float),
    "boolean": bool,
    "blob": (bytes, bytearray, io.IOBase),
    "timestamp": (dt.datetime, int, float, str),
}


def violations(operation: str, request: Mapping[str, Any], *, service: str = "lambda") -> list[str]:
    """Every way in which the request breaks the model, in AWS's words; empty when it fits.

    Args:
        operation: the API's operation, such as `CreateEventSourceMapping`.
        request: its parameters, by the API's names.
        service: the API, by botocore's name of it.
    """
    return list(_check(_input_shape(operation, service), dict(request), ""))


def members(operation: str) -> frozenset[str]:
    """The names of an operation's parameters."""
    return frozenset(_input_shape(operation).members)


@cache
def _input_shape(operation: str, service: str = "lambda") -> Any:
    model = botocore.session.get_session().get_service_model(service)
    return model.operation_model(operation).input_shape


def _check(shape: Any, value: Any, place: str) -> Iterator[str]:
    kind: str = shape.type_name
    fits = isinstance(value, _TYPES[kind])
    if not fits or (isinstance(value, bool) and kind != "boolean"):
        yield f"Value '{value}' at '{place}' failed to satisfy constraint: Member must be of type {kind}"
        return
    yield from _constraints(shape, value, place)
    if kind == "structure":
        yield from _check_structure(shape, value, place)
    elif kind == "list":
        for index, member in enumerate(value):
            yield from _check(shape.member, member, f"{place}.{index + 1}.member")
    elif kind == "map":
        for name, member in value.items():
            yield from _check(shape.key, name, f"{place}.key")
            yield from _check(shape.value, member, _inside(place, name))


def _check_structure(shape: Any, value: Mapping[str, Any], place: str) -> Iterator[str]:
    for name in shape.required_members:
        if value.get(name) is None:
            yield f"Value null at '{_inside(place, name)}' failed to satisfy constraint: Member must not be null"
    for name, member in value.items():
        if name not in shape.members:
            yield f"Unknown parameter '{_inside(place, name)}'; must be one of: {', '.join(shape.members)}"
        elif member is not None:
            yield from _check(shape.members[name], member, _inside(place, name))


def _constraints(shape: Any, value: Any, place: str) -> Iterator[str]:
    facts = shape.metadata
    complaint = f"Value '{value}' at '{place}' failed to satisfy constraint: "
    sized = isinstance(value, (str, list, tuple, dict))
    measure = len(value) if sized else value
    quality = "length" if sized else "value"
    if isinstance(measure, (int, float)) and not isinstance(value, bool):
        if "min" in facts and measure < facts["min"]:
            yield f"{complaint}Member must have {quality} greater than or equal to {facts['min']}"
        if "max" in facts and measure > facts["max"]:
            yield f"{complaint}Member must have {quality} less than or equal to {facts['max']}"
    if "enum" in facts and value not in facts["enum"]:
        yield f"{complaint}Member must satisfy enum value set: [{', '.join(facts['enum'])}]"
    if "pattern" in facts and isinstance(value, str) and not re.fullmatch(_in_python(facts["pattern"]), value):
        yield f"{complaint}Member must satisfy regular expression pattern: {facts['pattern']}"


def _in_python(pattern: str) -> str:
    # The model's patterns are Java's. What Python lacks stands only in those of tags: letters, numbers and spaces. They
    # allow the underscore too, so a word's letters are no more than what they take.
    return pattern.replace(r"\p{L}", r"\w").replace(r"\p{N}", r"\d").replace(r"\p{Z}", r"\s")


def _inside(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name
