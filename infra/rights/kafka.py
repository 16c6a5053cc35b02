"""TODO by its helper."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from infra.deployment import FlowDeployment
    from infra.rights import Part, Right


def rights(part: Part, flow: FlowDeployment) -> list[Right]:
    """What a part of a flow may do."""
    del part, flow
    return []
