"""DynamoDB rights of each part: the actions of its calls, table by table, and no others.

A test holds them against the recording of the calls, both ways.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from infra.iam import Right

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from infra.deployment import FlowDeployment
    from infra.iam import Part

_DOCUMENTS: Final = ("Query", "PartiQLInsert", "PartiQLUpdate", "BatchWriteItem")
"""Documents are read by their prefix, and written under a lease; parts of large ones need no condition."""

_LEASE: Final = ("UpdateItem",)
"""A lease is taken, renewed and released on a condition."""

_JOURNALS: Final = ("Query", "BatchGetItem", "PutItem", "UpdateItem")
"""An entry is put on a condition, and settled by an update."""

_CONTROL: Final[Mapping[str, tuple[str, ...]]] = {
    "offset_map": ("Query", "BatchGetItem", "UpdateItem"),
    "lanes": ("BatchGetItem", "Scan", "UpdateItem"),
    "loss_ledger": ("GetItem", "PutItem"),
    "checkpoints": (*_DOCUMENTS, "DeleteItem"),
    "control": _DOCUMENTS + _LEASE,
}

ACTIONS: Final[Mapping[Part, Mapping[str, tuple[str, ...]]]] = {
    "forward": {
        "offset_map": _JOURNALS,
        "lanes": ("BatchGetItem", "UpdateItem"),
        "loss_ledger": ("PutItem",),
    },
    "pull": {
        "offset_map": _JOURNALS,
        "lanes": ("BatchGetItem", "UpdateItem"),
        "loss_ledger": ("PutItem",),
        "control": ("Query", "BatchWriteItem", "UpdateItem"),
    },
    "control": _CONTROL,
    "standby": _CONTROL,
    "refresh_topics": {
        "offset_map": ("Query", "BatchGetItem"),
        "lanes": ("BatchGetItem", "Scan", "UpdateItem"),
        "control": _DOCUMENTS + _LEASE,
    },
    "remove_mappings": {"control": _LEASE},
    "jobs": {
        "offset_map": _JOURNALS,
        "lanes": ("BatchGetItem", "UpdateItem"),
        "loss_ledger": ("Query", "PutItem"),
        "checkpoints": ("BatchWriteItem",),
    },
}
"""DynamoDB's actions by part and table."""


READS_COUNTERPART: Final = frozenset({"control", "standby"})
"""Parts that carry groups."""


def actions_of(part: Part, flow: FlowDeployment) -> Mapping[str, tuple[str, ...]]:
    """The actions of a part of this flow by table: `control` adds entries where it copies what no event can carry."""
    if part == "control" and flow.flow.copies_oversize:
        return {**ACTIONS[part], "offset_map": _JOURNALS}
    return ACTIONS[part]


def rights(part: Part, flow: FlowDeployment) -> list[Right]:
    """What a part may do: in its tables, or be the role that may, where the tables are in another account."""
    wanted = actions_of(part, flow)
    role = flow.tables_role_of(part)
    if not wanted:
        return []
    if role:
        return [Right(actions=("sts:AssumeRole",), resources=(role,))]
    return [*in_tables(flow, wanted), *(counterpart_rights(flow) if part in READS_COUNTERPART else [])]


def counterpart_rights(flow: FlowDeployment) -> list[Right]:
    """To read the offset map of the flow in the other direction, where groups are carried by both maps."""
    table = flow.counterpart_arn
    if table is None or flow.counterpart is None:
        return []
    granted = [Right(actions=("dynamodb:Query", "dynamodb:BatchGetItem"), resources=(table,))]
    if flow.counterpart_key:
        granted.append(_opened(flow.counterpart_key, flow.counterpart.region))
    return granted


def tables_role_rights(flow: FlowDeployment) -> list[Right]:
    """What the role does by which functions of another account reach the tables: what any of them does."""
    union: dict[str, tuple[str, ...]] = {}
    for part in ACTIONS:
        if flow.has(part) and flow.tables_role_of(part):
            for table, actions in actions_of(part, flow).items():
                union[table] = tuple(dict.fromkeys((*union.get(table, ()), *actions)))
    return in_tables(flow, union)


def in_tables(flow: FlowDeployment, wanted: Mapping[str, Iterable[str]]) -> list[Right]:
    """To do these things in a flow's tables, and to have them opened. Args: wanted: actions by table."""
    arns = flow.table_arns()
    granted = [
        Right(actions=tuple(f"dynamodb:{action}" for action in actions), resources=(arns[table],))
        for table, actions in wanted.items()
    ]
    if flow.tables_key:
        granted.append(_opened(flow.tables_key, flow.state.region))
    return granted


def _opened(key: str, region: str) -> Right:
    """DynamoDB opens a table's key in the name of whoever reads or writes; it makes that key in its own.

    https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/encryption.usagenotes.html
    """
    service = f"dynamodb.{region}.amazonaws.com"
    return Right(actions=("kms:Decrypt",), resources=(key,), conditions={"StringEquals": {"kms:ViaService": service}})
