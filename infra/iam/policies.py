"""The policies of a role: one inline, and managed ones for what does not fit in there, up to IAM's quotas.

Rights are never widened to fit: what no role can hold is a problem of the configuration.
(https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_iam-quotas.html)
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from infra.iam import Right

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

INLINE: Final = 10_240
"""Characters of all inline policies of a role together, white space apart."""

MANAGED: Final = 6_144
"""Characters of one managed policy, white space apart."""

ATTACHED: Final = 10
"""Managed policies of a role, unless an account asked for more."""

_OWN: Final = 640
"""Characters of the inline policies that constructs add by themselves, such as what a function's code is denied."""

_FRAME: Final = len('{"Statement":[],"Version":"2012-10-17"}')


def characters(right: Right) -> int:
    """The characters of a statement, and of the comma behind it."""
    return len(json.dumps(right.written(), separators=(",", ":"))) + 1


def divided(rights: Iterable[Right], *, reserved: int = 0) -> list[list[Right]]:
    """The rights by policies: first those of the inline one, then those of each managed one.

    A statement that is too long for one policy is continued in the next. Args: reserved: characters of other rights.
    """
    policies: list[list[Right]] = [[]]
    room = INLINE - _OWN - _FRAME - reserved
    for right in rights:
        rest: Right | None = right
        while rest is not None:
            fitting, rest = _cut(rest, room)
            if fitting is not None:
                policies[-1].append(fitting)
                room -= characters(fitting)
            if rest is not None:
                policies.append([])
                room = MANAGED - _FRAME
    return policies


def are_too_many(policies: Sequence[Sequence[Right]]) -> bool:
    """Whether a role cannot have so many."""
    return len(policies) > 1 + ATTACHED


def _cut(right: Right, room: int) -> tuple[Right | None, Right | None]:
    """What of a statement fits, and the rest."""
    if characters(right) <= room:
        return right, None
    spare = room - characters(replace(right, resources=("", "")))
    for count, resource in enumerate(right.resources):
        spare -= len(resource) + 3  # its quotes, and a comma
        if spare < 0:
            fitting = replace(right, resources=right.resources[:count]) if count else None
            return fitting, replace(right, resources=right.resources[count:])
    return None, right
