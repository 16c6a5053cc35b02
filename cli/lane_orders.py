"""`mirrorless lanes quarantine | reset`: orders that change what a lane goes on with.

`quarantine` leaves out the record that the target refused, or a range that begins with it.
`reset` closes the lane's chain with a link, after which a
new generation begins at another upstream offset; without a partition, of every stopped lane of a topic.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cli.args import BadInput, offset
from cli.clusters import SourceView, deadline
from cli.deployment import DeployedFlows, Stores
from cli.output import PLAN_ONLY, console, lane_as_json, print_json, sentence, table
from cli.target_end import behind_target
from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import RUNNING, Head, LaneState, ReplicatedRanges, Stop, believed
from mirrorless.clock import now_ms
from mirrorless.errors import LostRace
from mirrorless.lanes.check_state import read_notes
from mirrorless.lanes.foreign import sentences
from mirrorless.lanes.log_comparison import LogComparison
from mirrorless.lanes.operator_actions import NotAllowed, ResetPlan, plan_quarantine, plan_reset
from mirrorless.reports.format import numbered

SOURCE_SECONDS = 60.0
"""For the comparison of a lane with its topic as it is."""


def run_quarantine(arguments: argparse.Namespace) -> int:
    """Leave out a refused record, or a range that begins with it, and drop the stop."""
    deployment, stores, lane, state = _named_lane(arguments)
    to = _range_end(arguments, deployment, lane)
    head = stores.chains.heads([lane])[lane]
    try:
        orders = plan_quarantine(lane, head, state, arguments.offset, to=to, alike=arguments.alike)
    except NotAllowed as exc:
        raise BadInput(exc.what, where=exc.where, hint=exc.hint) from exc
    stop = state.stop
    cause, why = (stop.cause, stop.detail) if stop is not None else ("", "")
    if to is None:
        what = "batch" if cause == "DAMAGED" else "record"
        left_out = f"Leave out exactly this {what}"
        if what == "batch":
            behind = (
                "Where the damage hides at which offset the next batch begins, the lane goes on once one stands there."
            )
            why = f"{sentence(why)} {behind}"
    elif arguments.alike:
        left_out = f"Leave out each record from here to {to - 1} that is refused for the same cause, {cause},"
    else:
        left_out = f"Leave out ALL records from here to {to - 1}, whether the target would take them or not,"
    plan = [
        f"The record at upstream offset {arguments.offset} was refused: {sentence(why)}",
        f"{left_out} note it in the loss ledger when the lane passes it, and drop the stop.",
    ]
    if arguments.execute:
        stores.states.quarantine(lane, *orders)
    return _answer(arguments, lane, plan, changes=True)


def _range_end(arguments: argparse.Namespace, deployment: DeployedFlows, lane: Lane) -> int | None:
    """The upstream offset behind the range of a quarantine; None for one record. The source's end bounds it."""
    if arguments.to is None and not arguments.alike:
        return None
    source = SourceView.of(deployment, lane.flow)
    extent = source.extent(lane)
    if extent is None:
        raise BadInput(
            f"a range ends where the source ends: {source.trouble or 'it has no such partition'}",
            where=str(lane),
            hint="once the source answers, run the command again",
        )
    if arguments.to is not None and arguments.to > extent.end:
        raise BadInput(
            f"the source ends at {extent.end}, below {arguments.to}",
            where=str(lane),
            hint="records that are yet to come are not left out ahead",
        )
    return extent.end if arguments.to is None else int(arguments.to)


def run_reset(arguments: argparse.Namespace) -> int:
    """Close chains with a link, and let a new generation begin at `--to`: of one lane, or of a topic's stopped ones.

    Exit code 1 where a lane of several moved on meanwhile: nothing of it was changed, and the others are done.
    """
    if arguments.partition is None:
        return _reset_stopped(arguments)
    deployment, stores, lane, state = _named_lane(arguments)
    order = _reset_order(arguments, deployment, stores, lane, state)
    if arguments.execute:
        _carry_out(order.plan, stores)
    steps = [*order.steps, *foreign_notes(deployment, stores, [lane])]
    return _answer(arguments, lane, steps, changes=True, more=order.more())


def foreign_notes(deployment: DeployedFlows, stores: Stores, lanes: Sequence[Lane]) -> list[str]:
    """What the lane check has seen of other producers' records beside those of some lanes of one flow."""
    noted = read_notes(stores.documents, lanes[0].flow) if lanes else {}
    found = {
        lane: notes
        for lane in lanes
        if lane.topic in noted and (notes := noted[lane.topic].lanes.get(lane.partition)) is not None
    }
    if not found:
        return []
    return [sentence(each) for each in sentences(lanes[0].flow, found, deployment.settings(lanes[0].flow).remote_topic)]


def _reset_stopped(arguments: argparse.Namespace) -> int:
    """One plan for every stopped lane of a topic; held ones are the operator's own order, and stay."""
    if isinstance(arguments.to, int):
        raise BadInput(
            "an offset is one partition's",
            where=f"{arguments.flow} {arguments.topic}",
            hint="name the partition, or write --to earliest, --to latest or --to target",
        )
    if arguments.until is not None:
        raise BadInput(
            "--until is one partition's", where=f"{arguments.flow} {arguments.topic}", hint="name the partition"
        )
    deployment = DeployedFlows.of(arguments)
    flow = deployment.flow_name(arguments.flow)
    stores = deployment.stores(flow)
    stops = {lane: state for lane, state in stores.states.stopped(flow).items() if lane.topic == arguments.topic}
    held = sorted(lane.partition for lane, state in stops.items() if state.stop and state.stop.reason == "held")
    lanes = sorted(lane for lane in stops if lane.partition not in held)
    # All plans before the first change: where one is refused, nothing is changed.
    orders = [_reset_order(arguments, deployment, stores, lane, stops[lane]) for lane in lanes]
    failures: dict[Lane, str] = {}
    for order in orders if arguments.execute else ():
        try:
            _carry_out(order.plan, stores)
        except LostRace as exc:
            failures[order.lane] = str(exc)
    notes = (
        [f"{'Partitions' if held[1:] else 'Partition'} {', '.join(map(str, held))}: held by an order, and stays so."]
        if held
        else []
    )
    _answer_all(arguments, orders, failures, notes + foreign_notes(deployment, stores, lanes))
    return int(bool(failures))


@dataclass(frozen=True, slots=True, kw_only=True)
class _ResetOrder:
    """The reset of one lane."""

    lane: Lane
    head: Head
    to: int
    plan: ResetPlan
    steps: list[str]
    gone: int | None = None
    """The partitions that the topic has now, where this one is not among them."""

    def more(self) -> dict[str, int]:
        """For programs."""
        head = self.head
        return {
            "position": head.position,
            "generation": head.generation,
            "to": self.to,
            "to_generation": head.generation + 1,
        }


def _reset_order(
    arguments: argparse.Namespace, deployment: DeployedFlows, stores: Stores, lane: Lane, state: LaneState
) -> _ResetOrder:
    source = SourceView.of(deployment, lane.flow)
    gone = source.has_lost(lane)
    head = believed(stores.chains.heads([lane])[lane], state)
    behind = arguments.to == "target" and gone is None
    if behind:
        to = behind_target(deployment, lane, state.stop, head.position if head.expired else 0)
    else:
        to = 0 if gone is not None else _resolved(arguments.to, lane, source)
    replicated: ReplicatedRanges = ()
    if gone is None:
        stop, ordered = state.stop, arguments.until
        replicated = _replicated(deployment, stores, source, lane, head, stop=stop, to=to, ordered=ordered)
        if stop is not None and stop.begins_replicated and head.position < min(to, stop.upstream_offset):
            logs = _comparison(deployment, stores, lane)
            state = replace(state, stop=_waits_for(source, logs, lane, head, stop))
    try:
        plan = plan_reset(
            lane,
            head,
            state,
            to,
            reason=arguments.reason,
            now=now_ms(),
            behind_target=behind,
            replicated=replicated,
        )
    except NotAllowed as exc:
        raise BadInput(exc.what, where=exc.where, hint=exc.hint) from exc
    if gone is not None:
        steps = _closing_steps(plan, head, gone)
    else:
        group = deployment.mapping_group(lane)
        steps = _reset_steps(plan, head, behind=behind) + source.place_advice(lane, group, to)
    return _ResetOrder(lane=lane, head=head, to=to, plan=plan, steps=steps, gone=gone)


def _replicated(
    deployment: DeployedFlows,
    stores: Stores,
    source: SourceView,
    lane: Lane,
    head: Head,
    *,
    stop: Stop | None,
    to: int,
    ordered: int | None,
) -> ReplicatedRanges:
    """What a lane has already of the topic as it is, behind the offset to which it is reset: see `Stop.replicated`.

    Warm functions go on for a minute behind a stop, so it is looked for anew. The lane stands still before it, behind a
    record. `ordered` is where it begins, if an operator names it.
    """
    of_another_log = stop is not None and stop.reason in {"recreated", "truncated"}
    left = tuple(each for each in stop.replicated if each[0] > to) if stop is not None else ()
    if not (left if to >= head.position else of_another_log or ordered is not None):
        return ()
    logs, soon = _comparison(deployment, stores, lane), deadline(SOURCE_SECONDS)

    def look() -> ReplicatedRanges:
        found = left
        if to < head.position:
            # Below the place where a log parts its runs are of the log as it is, too.
            above = max(to, stop.upstream_offset) if stop is not None and stop.reason == "truncated" else to
            found = logs.replicated(lane, head, above, soon, known=ordered)
        if not found or found[0][0] <= to:
            return found
        return ((logs.stands_at(lane, to, found[0][0], soon), found[0][1]), *found[1:])

    found = source.read(look)
    if found is None:
        raise BadInput(
            f"it is not known whether records of the topic as it is were replicated already: {source.trouble}",
            where=str(lane),
            hint="let the source answer",
        )
    if ordered is not None and not found:
        raise BadInput(
            f"nothing that was replicated already begins at {ordered}",
            where=lane.at(head.position),
            hint="--until names the offset from which the source's present records were replicated already",
        )
    return found


def _waits_for(source: SourceView, logs: LogComparison, lane: Lane, head: Head, stop: Stop) -> Stop:
    """The stop to which a lane is on its way, behind the last record that the source still has before it.

    What was there when the lane was sent there may have expired since, or been compacted away.
    """
    soon = deadline(SOURCE_SECONDS)
    stands = source.read(lambda: logs.stands_at(lane, head.position, stop.upstream_offset, soon))
    return stop if stands is None else replace(stop, upstream_offset=stands)


def _comparison(deployment: DeployedFlows, stores: Stores, lane: Lane) -> LogComparison:
    from mirrorless.adapters.kafka.committed_log import KafkaCommittedLog  # noqa: PLC0415 -- commands without Kafka start sooner
    from mirrorless.adapters.kafka.log_epochs import KafkaLogEpochs  # noqa: PLC0415 -- same

    cluster, flow = deployment.settings(lane.flow).source, str(lane.flow)
    return LogComparison(
        chains=stores.chains, epochs=KafkaLogEpochs(cluster, flow=flow), log=KafkaCommittedLog(cluster, flow=flow)
    )


def _answer_all(
    arguments: argparse.Namespace, orders: Sequence[_ResetOrder], failures: Mapping[Lane, str], notes: Sequence[str]
) -> None:
    executed = bool(arguments.execute and orders)
    if arguments.json:
        lanes = [
            lane_as_json(order.lane)
            | order.more()
            | {"plan": order.steps, "error": failures.get(order.lane, ""), "executed": executed}
            for order in orders
        ]
        print_json({"lanes": lanes, "notes": list(notes), "executed": executed})
        return
    if orders:
        _show_all(orders)
    for note in notes:
        print(note)
    for failure in failures.values():
        print(failure)
    if not orders:
        print("No lane of this topic is stopped: nothing to do.")
    else:
        print(f"Done: {numbered(len(orders) - len(failures), 'lane')}." if executed else PLAN_ONLY)


def _show_all(orders: Sequence[_ResetOrder]) -> None:
    """A line for each lane, and once what is true of all of them; `--json` has the steps of each."""
    first = orders[0]
    made = table(f"{first.lane.flow} {first.lane.topic}")
    for heading in ("lane", "stands at", "begins at", "generation", "replicated again", "skipped", "in doubt"):
        made.add_column(heading, justify="right")
    for order in orders:
        plan, begins = order.plan, "closed" if order.gone is not None else str(order.to)
        again = plan.repeated if order.gone is None else None
        made.add_row(
            *(str(order.lane.partition), str(order.head.position), begins, str(plan.link.to_generation)),
            f"{again[0]} to {again[1] - 1}" if again else "-",
            f"{plan.loss.first} to {plan.loss.next - 1}" if plan.loss is not None else "-",
            f"{plan.given_up.position} to {plan.given_up.next - 1}" if plan.given_up is not None else "-",
        )
    console().print(made)
    steps = [f"A new generation of each lane begins: {first.plan.link.reason}", _ANEW]
    if any(order.plan.repeated for order in orders if order.gone is None):
        steps.append("Where the source topic still holds the records that were replicated before, they come twice.")
    if any(order.plan.stop for order in orders):
        steps.append(
            "What was replicated of the topic as it is does not come twice: lanes stand still before it, and "
            "`mirrorless lanes stopped` has the command that goes on behind it."
        )
    if any(order.plan.loss for order in orders):
        steps.append("What is skipped is noted in the loss ledger.")
    if any(order.plan.given_up for order in orders):
        steps.append("Of a run in doubt it can no longer be known whether its records are on the target.")
    if gone := next((order.gone for order in orders if order.gone is not None), None):
        steps += [f"{first.lane.topic} has {numbered(gone, 'partition')} on the source now. {_CLOSED}"]
    advised = dict.fromkeys(each for order in orders for each in order.steps if each.startswith(("Group ", "So ")))
    for step in (*steps, *advised):
        print(f"  - {step}")


_ANEW = "The map translates offsets of the new generation only. Drop the lane's stop and quarantine orders."
_CLOSED = "The target keeps the records of a closed lane; status and verify leave it out."


def _carry_out(plan: ResetPlan, stores: Stores) -> None:
    """1. The loss, so that nothing is skipped in silence. 2. The link. 3. The stop and the orders."""
    if plan.loss is not None:
        stores.ledger.note(plan.loss)
    try:
        stores.chains.reset(plan.link, plan.given_up)
    except LostRace as exc:
        noted = ""
        if plan.loss is not None:
            noted = f" The ledger now says that {plan.loss.first} to {plan.loss.next - 1} were skipped: they were not."
        raise LostRace(
            f"the lane moved on while it was reset: nothing was reset.{noted}",
            where=exc.where,
            hint="look at the new plan, and run the command again if it still makes sense",
        ) from exc
    stores.states.begin_anew(plan.link.lane, plan.stop)


def _stands(head: Head) -> str:
    least = ", or further on: the end of its map has expired" if head.expired else ""
    return f"The lane stands at upstream offset {head.position}, generation {head.generation}{least}."


def _reset_steps(plan: ResetPlan, head: Head, *, behind: bool) -> list[str]:
    link = plan.link
    steps = [
        _stands(head),
        *([f"What the target has ends before upstream offset {link.next}."] if behind else []),
        f"Close this chain, and begin generation {link.to_generation} at upstream offset {link.next}: {link.reason}",
    ]
    if plan.loss is not None:
        count = numbered(plan.loss.next - plan.loss.first, "upstream offset")
        steps.append(f"Skip {count} ({plan.loss.first} to {plan.loss.next - 1}), noted in the loss ledger.")
    if plan.repeated is not None:
        first, after = plan.repeated
        steps.append(
            f"Upstream offsets {first} to {after - 1} were replicated before. If the source topic still holds those "
            "same records, they will be on the target twice."
        )
    if plan.stop is not None:
        steps.append(f"Stand still at {plan.stop.upstream_offset}: {plan.stop.detail}")
    if plan.given_up is not None:
        steps.append(
            f"Give up the run in doubt [{plan.given_up.position}, {plan.given_up.next}): it can no longer be known "
            "whether its records are on the target."
        )
    steps.append(_ANEW)
    return steps


def _closing_steps(plan: ResetPlan, head: Head, partitions: int) -> list[str]:
    """The steps of the reset of a lane whose partition is gone. Args: partitions: that the topic has now."""
    lane = plan.link.lane
    generation = plan.link.to_generation
    return [
        _stands(head),
        f"{lane.topic} has {numbered(partitions, 'partition')} on the source now, so this closes the lane.",
        "The target keeps its records; status and verify leave it out.",
        f"Should the source get partition {lane.partition} again, generation {generation} begins at its first record.",
    ]


def destination(text: str) -> str | int:
    """An upstream offset, `earliest`, `latest` or `target`."""
    return text if text in {"earliest", "latest", "target"} else offset(text)


def _resolved(to: str | int, lane: Lane, source: SourceView) -> int:
    """The upstream offset that `--to` means; read from the source where it is not a number."""
    if isinstance(to, int):
        return to
    extent = source.extent(lane)
    if extent is None:
        raise BadInput(
            f"--to {to} cannot be resolved: {source.trouble or 'the source has no such partition'}",
            where=str(lane),
            hint="name the offset as a number",
        )
    return extent.start if to == "earliest" else extent.end


def _named_lane(arguments: argparse.Namespace) -> tuple[DeployedFlows, Stores, Lane, LaneState]:
    """The lane that FLOW, TOPIC and PARTITION name, with its state. Raises like `DeployedFlows.flow_name`."""
    deployment = DeployedFlows.of(arguments)
    lane = deployment.lane(arguments.flow, arguments.topic, arguments.partition)
    stores = deployment.stores(lane.flow)
    return deployment, stores, lane, stores.states.read([lane]).get(lane, RUNNING)


def _answer(
    arguments: argparse.Namespace,
    lane: Lane,
    plan: list[str],
    *,
    changes: bool,
    more: Mapping[str, Any] | None = None,
) -> int:
    """Show a plan, and whether it was carried out.

    Args:
        arguments: `json` and `execute`.
        lane: whose plan.
        plan: one sentence a step.
        changes: whether there is anything to carry out.
        more: for programs.
    """
    executed = changes and arguments.execute
    if arguments.json:
        print_json(lane_as_json(lane) | dict(more or {}) | {"plan": plan, "executed": executed})
        return 0
    print(f"{lane}:")
    for step in plan:
        print(f"  - {step}")
    if changes:
        print("Done." if executed else PLAN_ONLY)
    return 0
