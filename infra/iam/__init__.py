"""IAM rights as plain values; a role gets the sum of what its part needs.

calls        what each part calls, and of what: the table
kafka_names  names of topics and groups, as IAM has them
statements   the rights that are made of the table, and of what AWS does in a part's name
policies     how rights fit in the policies of a role
operator, execution_policy: what people and CloudFormation need, printed and never deployed
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

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
