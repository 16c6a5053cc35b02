"""How do ACLs look to people? Three tables: due now, staged, left."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from rich import box
from rich.console import Console
from rich.table import Table

from cli.acl_view import AclView
from cli.format import numbered
from mirrorless.topics.acls import Acl

PIPE_WIDTH = 160
"""A pipe or a log has no width of its own, and names are long."""

ON_TARGET = {True: "yes", False: "no", None: "?"}


def show(view: AclView, *, plan_only: bool) -> None:
    """Print the answer; `plan_only` where nothing was to be carried out anyway."""
    console = Console(highlight=False, markup=False, soft_wrap=True, width=None if sys.stdout.isatty() else PIPE_WIDTH)
    if view.without_authorizer:
        console.print(f"{view.without_authorizer} has no authorizer, so there are no ACLs to copy for {view.flow}.")
        return
    changes = [("create", acl) for acl in sorted(view.create)] + [("delete", acl) for acl in sorted(view.delete)]
    if changes:
        rows = ((acl, change) for change, acl in changes)
        console.print(_table(f"{view.flow}: to do on {view.flow.target}", "change", rows))
    elif not view.trouble:
        console.print(f"{view.flow}: nothing to do on {view.flow.target}.")
    if view.staged:
        rows = ((acl, ON_TARGET[there]) for acl, there in view.staged.items())
        console.print(_table("staged for a failover", f"on {view.flow.target}", rows))
    if view.left:
        console.print(_table("left out", "why", view.left.items()))
    for note in _notes(view, plan_only=plan_only):
        console.print(note)


def _notes(view: AclView, *, plan_only: bool) -> Iterable[str]:
    if view.trouble:
        yield f"What is due is not known, and what is staged is from the last round: {view.trouble}"
    if not view.scheduled:
        yield "sync.topic.acls.enabled is false: no schedule does this, and nothing is staged anew."
    if view.outcome is not None:
        for acl, why in sorted(view.outcome.failed.items()):
            yield f"! {acl}: {why}"
        created, deleted = len(view.outcome.created), len(view.outcome.deleted)
        yield f"Done: {numbered(created, 'ACL')} created, {numbered(deleted, 'ACL')} deleted."
    elif not plan_only and (view.create or view.delete):
        yield "Nothing was changed: this was the plan. Add --execute to carry it out."


def _table(title: str, last: str, rows: Iterable[tuple[Acl, str]]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE)
    for heading in ("resource", "name", "pattern", "principal", "host", "permission", "operation", last):
        table.add_column(heading)
    for acl, word in rows:
        table.add_row(acl.resource, acl.name, acl.pattern, acl.principal, acl.host, acl.permission, acl.operation, word)
    return table
