"""A role beside the tables that only the functions of another account can assume.

IAM refuses a trust policy that names a role which is not there yet, and the functions' roles are made after the tables.
So the account is trusted, on the condition that the caller is one of the flow's roles, known by its path. Both sides
must agree: each function's own policy names this role.
https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_condition-keys.html#condition-keys-principalarn
"""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from aws_cdk import aws_iam as iam
from constructs import Construct

from infra.constructs.exceptions import acknowledge
from infra.iam import Part
from infra.iam.tables import rights, tables_role_rights

if TYPE_CHECKING:
    from infra.deployment import FlowDeployment


def trusted(flow: FlowDeployment) -> list[str]:
    """Who may assume the role: the functions that have the right to, by the path of their roles."""
    users = [part for part in get_args(Part) if any("sts:AssumeRole" in each.actions for each in rights(part, flow))]
    return [flow.home.iam_arn(f"role{flow.role_path(part)}*") for part in users]


class TablesRole(Construct):
    """The role of one flow.

    Attributes:
        role: the role, under the name that the functions are told.
    """

    def __init__(self, scope: Construct, id_: str, *, flow: FlowDeployment) -> None:
        super().__init__(scope, id_)
        granted = tables_role_rights(flow)
        self.role = iam.Role(
            self,
            "Role",
            role_name=flow.flow.resource_name("tables"),
            description=f"The functions of {flow.id} reach its tables by it, from account {flow.home.account}",
            assumed_by=iam.ArnPrincipal(flow.home.iam_arn("root")).with_conditions(
                {"ArnLike": {"aws:PrincipalArn": trusted(flow)}}
            ),
            inline_policies={"tables": iam.PolicyDocument(statements=[each.statement() for each in granted])},
        )
        acknowledge(self.role, granted)
