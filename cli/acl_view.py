"""What is there to say of a flow's ACLs: which are due, staged or left, and what became of them?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mirrorless.lane import FlowName
from mirrorless.topics.acl_sync import AclOutcome, AclPlan, AclSync, Disabled
from mirrorless.topics.acls import Acl


@dataclass(frozen=True, slots=True, kw_only=True)
class AclView:
    """What the command has to say about a flow."""

    flow: FlowName
    create: frozenset[Acl] = frozenset()
    delete: frozenset[Acl] = frozenset()
    staged: Mapping[Acl, bool | None] = field(default_factory=dict)
    """Whether it is on the target already; None where that is not known."""
    left: Mapping[Acl, str] = field(default_factory=dict)
    without_authorizer: str = ""
    """The alias of a cluster that has none: there is nothing to do then."""
    scheduled: bool = True
    """Whether a schedule applies what is due."""
    trouble: str = ""
    """Why it is not known what is due."""
    outcome: AclOutcome | None = None
    """None: nothing was carried out."""


def view_of(sync: AclSync, plan: AclPlan | Disabled) -> AclView:
    """What a plan says, where nothing was carried out yet."""
    flow, scheduled = sync.settings.name, is_scheduled(sync)
    if isinstance(plan, Disabled):
        alias = flow.source if plan.cluster == "source" else flow.target
        return AclView(flow=flow, without_authorizer=alias, scheduled=scheduled)
    return AclView(
        flow=flow,
        create=plan.changes.create,
        delete=plan.changes.delete,
        staged={acl: acl in plan.on_target for acl in sorted(plan.wanted.staged)},
        left=plan.wanted.left,
        scheduled=scheduled,
    )


def is_scheduled(sync: AclSync) -> bool:
    """Whether a schedule applies what is due."""
    return sync.settings.sync_topic_acls_seconds is not None
