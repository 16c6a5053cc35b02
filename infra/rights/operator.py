"""What must a person be allowed to do who operates flows by `mirrorless`? A policy for each flow, by what they do.

    python -m infra.rights.operator replication.yaml            to look: status, translate, losses, groups, topics
    python -m infra.rights.operator replication.yaml --repair   to repair as well: lanes, acl

Nothing of this is deployed: how people get their rights is each account's own affair. The rights are those of the
account that keeps the flow's tables, where the command is used; rights inside Kafka are apart. A test derives the calls
from the code and compares both ways.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from infra.deployment import plan
from infra.rights import Right
from infra.rights.secrets import readable
from infra.rights.tables import in_tables
from mirrorless.configuration import load
from mirrorless.errors import MirrorlessError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from infra.deployment import FlowDeployment

LOOK: Final[Mapping[str, tuple[str, ...]]] = {
    "offset_map": ("Query",),
    "lanes": ("Scan",),
    "loss_ledger": ("Query", "Scan"),
    "checkpoints": ("Query",),
    "control": ("Query",),
}
"""DynamoDB's actions by table, to look."""

REPAIR: Final[Mapping[str, tuple[str, ...]]] = {
    "offset_map": ("PartiQLInsert", "PartiQLDelete"),
    "lanes": ("BatchGetItem", "UpdateItem"),
    "loss_ledger": ("PutItem",),
    "control": ("BatchWriteItem", "PutItem", "DeleteItem"),
}
"""What a repair needs beside: a lane resumed or reset, a record left out, ACLs applied."""


def rights(flow: FlowDeployment, *, repair: bool) -> list[Right]:
    """What an operator needs for a flow: in its tables, and its secrets where the tables are."""
    tables = {table: LOOK[table] + (REPAIR.get(table, ()) if repair else ()) for table in LOOK}
    there = flow.home if flow.home.account == flow.state.account else flow.state
    return [*in_tables(flow, tables), *readable(flow, there)]


def policy(flow: FlowDeployment, *, repair: bool) -> dict[str, Any]:
    """The policy as IAM takes it."""
    statements = [right.statement().to_statement_json() for right in rights(flow, repair=repair)]
    return {"Version": "2012-10-17", "Statement": statements}


def main() -> None:
    """Print the policy of each flow."""
    parser = argparse.ArgumentParser(description="The policies that operators of these flows need.")
    parser.add_argument("config", type=Path, help="replication.yaml")
    parser.add_argument("--repair", action="store_true", help="to change lanes and ACLs, and not only to look")
    arguments = parser.parse_args()
    try:
        flows = plan(load(arguments.config)).flows
    except MirrorlessError as error:
        sys.exit(str(error))
    for flow in flows:
        print(f"# {flow.name}, in account {flow.state.account}", file=sys.stderr)
        print(json.dumps(policy(flow, repair=arguments.repair), indent=2))


if __name__ == "__main__":
    main()
