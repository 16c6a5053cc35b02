"""Orders that change state: the plan is shown first, and carried out with `--execute`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from cli.output import print_json, say
from mirrorless.errors import LostRace
from mirrorless.reports.format import numbered

PLAN_ONLY = "Nothing was changed: this was the plan. Add --execute to carry it out."


@dataclass(slots=True, kw_only=True)
class Order:
    """What is to be done to one thing."""

    about: object
    plan: Sequence[str]
    """A sentence for each step."""
    carry_out: Callable[[], str | None] | None
    """Returns what is left to do, in a sentence; None where there is nothing to do at all."""
    programs: dict[str, Any] = field(default_factory=dict)
    """What programs learn beside the plan."""


def show(orders: Sequence[Order]) -> None:
    """Print the steps of each order."""
    for order in orders:
        say(f"{order.about}:")
        for step in order.plan:
            say(f"  - {step}")


def obey(
    arguments: argparse.Namespace,
    orders: Sequence[Order],
    *,
    notes: Sequence[str] = (),
    shown: Callable[[Sequence[Order]], None] = show,
    many: bool = False,
    nothing: str = "No lane fits: nothing to do.",
) -> int:
    """Show the plan, with `--execute` carry it out, and say what became of it. Exit code 1 where something is left.

    Args:
        arguments: `json` and `execute`.
        orders: to be carried out in this order.
        notes: what is true of all of them.
        shown: shows the orders to people.
        many: whether the answer is a list. Then an order that is late for its lane does not end the others.
        nothing: what is said without an order.
    """
    due = [order for order in orders if order.carry_out is not None]
    if not arguments.json:
        if orders:
            shown(orders)
        for note in notes if due else ():
            say(note)
    executed = bool(due and arguments.execute)
    left = _carried_out(due, many=many) if executed else []
    if arguments.json:
        found = [order.programs | {"plan": order.plan} for order in orders]
        answer = {"lanes": found, "notes": notes} if many else found[0]
        print_json(answer | {"executed": executed})
        return int(bool(left))
    for each in left:
        say(each)
    if not orders:
        say(nothing)
    elif due and not executed:
        say(PLAN_ONLY)
    elif executed and (many or not left):
        say(f"Done: {numbered(len(due) - len(left), 'lane')}." if many else "Done.")
    return int(bool(left))


def _carried_out(orders: Sequence[Order], *, many: bool) -> list[str]:
    """Returns what is left of them."""
    left = []
    for order in orders:
        try:
            said = order.carry_out() if order.carry_out is not None else None
        except LostRace as exc:
            if not many:
                raise
            said = order.programs["error"] = str(exc)
        left += [said] if said else []
    return left
