"""IAM rights as plain values; a role gets the sum of what its part needs.

calls        what each part calls, and of what: the table
kafka_names  names of topics and groups, as IAM has them
statements   the rights that are made of the table, and of what AWS does in a part's name
operator, execution_policy: what people and CloudFormation need, printed and never deployed

The policies of a role are one inline, and managed ones for what does not fit in there, up to IAM's quotas. Rights are
never widened to fit: what no role can hold is a problem of the configuration.
(https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_iam-quotas.html)
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from aws_cdk import aws_iam as iam

Part = Literal["forward", "pull", "control", "standby", "refresh_topics", "remove_mappings", "jobs"]
"""Who acts: a function by its file, `control` in its other region, or the Spark jobs."""


def file_of(part: Part) -> str:
    """The file of a function in `functions/`, without `.py`."""
    return "control" if part == "standby" else part


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """Actions on resources.

    Attributes:
        actions: as IAM writes them, `dynamodb:Query`.
        resources: ARNs; `*` only where IAM has none that is narrower, which is then the `reason`.
        conditions: as IAM writes them.
        reason: why the resource has a wildcard; the exception in the security report quotes it.
    """

    actions: tuple[str, ...]
    resources: tuple[str, ...]
    conditions: Mapping[str, Mapping[str, str | tuple[str, ...]]] = field(default_factory=dict)
    reason: str = ""

    def written(self) -> dict[str, Any]:
        """The statement as JSON has it."""
        conditions = {
            operator: {key: _one_or_all(value) for key, value in keys.items()}
            for operator, keys in self.conditions.items()
        }
        actions, resources = _one_or_all(self.actions), _one_or_all(self.resources)
        statement = {"Action": actions, "Effect": "Allow", "Resource": resources}
        return {**statement, "Condition": conditions} if conditions else statement

    def statement(self) -> iam.PolicyStatement:
        """The statement of a policy."""
        from aws_cdk import aws_iam  # noqa: PLC0415 -- starts Node, which whoever only checks a configuration needs not

        return aws_iam.PolicyStatement.from_json(self.written())


def _one_or_all(values: str | tuple[str, ...]) -> str | list[str]:
    if isinstance(values, str):
        return values
    return values[0] if len(values) == 1 else list(values)


INLINE: Final = 10_240
"""Characters of all inline policies of a role together, white space apart."""

MANAGED: Final = 6_144
"""Characters of one managed policy, white space apart."""

ATTACHED: Final = 10
"""Managed policies of a role, unless an account asked for more."""

_OWN: Final = 640
"""Characters of the inline policies that constructs add by themselves, such as what a function's code is denied."""

FRAME: Final = len('{"Statement":[],"Version":"2012-10-17"}')
"""Characters of a policy without statements."""


def characters(right: Right) -> int:
    """The characters of a statement, and of the comma behind it."""
    return len(json.dumps(right.written(), separators=(",", ":"))) + 1


def divided(rights: Iterable[Right], *, reserved: int = 0) -> list[list[Right]]:
    """The rights by policies: first those of the inline one, then those of each managed one.

    A statement that is too long for one policy is continued in the next. Args: reserved: characters of other rights.
    """
    policies: list[list[Right]] = [[]]
    room = INLINE - _OWN - FRAME - reserved
    for right in rights:
        rest: Right | None = right
        while rest is not None:
            fitting, rest = _cut(rest, room)
            if fitting is not None:
                policies[-1].append(fitting)
                room -= characters(fitting)
            if rest is not None:
                policies.append([])
                room = MANAGED - FRAME
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
