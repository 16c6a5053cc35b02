"""All rights of one part of a flow, without those to write its log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infra.iam import kafka, mappings, network, secrets, tables

if TYPE_CHECKING:
    from infra.deployment import FlowDeployment
    from infra.iam import Part, Right


def rights(part: Part, flow: FlowDeployment) -> list[Right]:
    """Everything that a part of a flow may do."""
    return [right for subject in (tables, secrets, kafka, network, mappings) for right in subject.rights(part, flow)]
