"""Paths of `fields` into a value, and the tree that the paths of a rule make.

    customer.email  items[*].note  items[0]  *  customer.*  "a.b".c

A name ends at a dot, a bracket, a quote, a star or a blank; in quotes, as a string of JSON, it may be anything.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from enum import Enum
from itertools import chain
from typing import Final, TypeAlias

from mirrorless.errors import ConfigurationError
from mirrorless.transforms.rules import Action


class Wildcard(Enum):
    """All members of an object, or all elements of an array."""

    MEMBER = ".*"
    ELEMENT = "[*]"


PathStep: TypeAlias = str | int | Wildcard
"""A member's name, an element's index, or all."""

Tree: TypeAlias = dict[PathStep, "Tree"] | Action
"""What is to do at a place: an action, or what is to do below it. Steps of one place are of one kind."""

_NAME: Final = re.compile(r'[^\s.\[\]"*]+')
_STEP: Final = re.compile(
    rf'(?:^|(?!^)\.)(?:(?P<name>{_NAME.pattern})|(?P<quoted>"(?:[^"\\]|\\.)*")|(?P<each>\*))|\[(?P<at>\*|\d+)\]'
)


def steps_of(path: str) -> tuple[PathStep, ...]:
    """Read a path. Raises ConfigurationError: it is none."""
    steps: list[PathStep] = []
    at = 0
    while (found := _STEP.match(path, at)) and found.end() > at:
        steps.append(_step(found, path))
        at = found.end()
    if at < len(path) or not steps:
        raise _wrong(path, f"no path: what begins at character {at + 1} cannot be read")
    return tuple(steps)


def _step(found: re.Match[str], path: str) -> PathStep:
    if found["name"]:
        return found["name"]
    if found["each"]:
        return Wildcard.MEMBER
    if found["at"]:
        return Wildcard.ELEMENT if found["at"] == "*" else int(found["at"])
    try:
        name: str = json.loads(found["quoted"])
        name.encode()
    except ValueError as exc:
        raise _wrong(path, "a name in quotes that is no string of JSON") from exc
    return name


def spelled(step: PathStep) -> str:
    """A step as it stands in a path. No two paths have one spelling, whatever their names."""
    if isinstance(step, Wildcard):
        return step.value
    if isinstance(step, int):
        return f"[{step}]"
    return f".{step}" if _NAME.fullmatch(step) else f".{json.dumps(step)}"


def tree_of(fields: Mapping[str, Action]) -> Tree:
    """Join the paths of a rule.

    At each place a name or an index goes before a wildcard. What it leaves open stays with the wildcard: beside
    `customer.name`, `*` holds for all else in `customer` too, so that a list of what may pass is one of all that does.

    Raises:
        ConfigurationError: a path is none, or two contradict each other.
    """
    root: dict[PathStep, Tree] = {}
    for path, action in fields.items():
        *way, last = steps_of(path)
        place = root
        for step in way:
            below = _fitting(place, step, path).setdefault(step, {})
            if not isinstance(below, dict):
                raise _wrong(path, "it leads into what another path decides about")
            place = below
        if last in _fitting(place, last, path):
            raise _wrong(path, "another path decides about it, or leads into it")
        place[last] = action
    return _joined([root])


def _fitting(place: dict[PathStep, Tree], step: PathStep, path: str) -> dict[PathStep, Tree]:
    if place and _each(place) is not _each((step,)):
        raise _wrong(path, "it takes for an array what another path takes for an object, or the other way round")
    return place


def _each(steps: Mapping[PathStep, Tree] | tuple[PathStep]) -> Wildcard:
    """The wildcard that is of the kind of these steps."""
    first = next(iter(steps))
    return Wildcard.MEMBER if isinstance(first, str) or first is Wildcard.MEMBER else Wildcard.ELEMENT


def _joined(trees: Sequence[Tree]) -> Tree:
    """What is to do where several trees meet, the most exact first: each does what those before it leave open."""
    first = trees[0]
    if not isinstance(first, dict):
        return first
    each = _each(first)
    layers: list[dict[PathStep, Tree]] = []
    for tree in trees:
        if not isinstance(tree, dict):
            layers.append({each: tree})
            break
        if _each(tree) is each:
            layers.append(tree)
    return {
        step: _joined([layer[way] for layer in layers for way in dict.fromkeys((step, each)) if way in layer])
        for step in dict.fromkeys(chain.from_iterable(layers))
    }


def _wrong(path: str, what: str) -> ConfigurationError:
    return ConfigurationError(
        what,
        where=f"fields: {path}",
        hint='names with dots between, [*] or [0] for elements, * for all members, quotes around odd names: a."b.c"[*]',
    )
