"""`mirrorless lanes reset`: a lane's chain is closed, and a new generation begins at another upstream offset.

Of one lane, or of every stopped lane of a topic. `--to target` is where the source goes on behind the last record that
the target has.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from cli.args import BadInput, offset
from cli.clusters import ClusterView
from cli.copied_places import PlaceSearch
from cli.deployment import DeployedFlows, Stores
from cli.orders import Order, obey
from cli.output import TableColumns, console, lane_as_json, say, sentence, table
from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import RUNNING, Head, LaneState, ReplicatedRanges, Stop, believed
from mirrorless.clock import deadline_in, now_ms
from mirrorless.errors import LostRace
from mirrorless.lanes.check_state import read_notes
from mirrorless.lanes.foreign import sentences
from mirrorless.lanes.log_comparison import LogComparison
from mirrorless.lanes.operator_actions import ResetPlan, plan_reset
from mirrorless.protocol.past import PastStore
from mirrorless.reports.format import numbered

ANSWER_SECONDS = 60.0
"""For each question to a cluster, and for the comparison of a lane with its topic as it is."""

ResetStep = tuple[str, str]
"""What is of one lane alone, and what is true of each lane that has such a step; either may be empty."""


def run_reset(arguments: argparse.Namespace) -> int:
    """Close chains with a link, and let a new generation begin at `--to`: of one lane, or of a topic's stopped ones.

    Exit code 1 where a lane of several moved on meanwhile: nothing of it was changed, and the others are done.
    """
    if arguments.partition is None:
        return _reset_stopped(arguments)
    deployment, stores, lane, state = named_lane(arguments)
    order = _reset(arguments, deployment, stores, lane, state).order(stores)
    order.plan = [*order.plan, *foreign_notes(deployment, stores, [lane])]
    return obey(arguments, [order])


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
    if isinstance(arguments.to, int) or arguments.until is not None:
        raise BadInput(
            "an offset is one partition's",
            where=f"{arguments.flow} {arguments.topic}",
            hint="name the partition, or leave out --until, and write --to earliest, --to latest or --to target",
        )
    deployment = DeployedFlows.of(arguments)
    flow = deployment.flow_name(arguments.flow)
    stores = deployment.stores(flow)
    stops = {lane: state for lane, state in stores.states.stopped(flow).items() if lane.topic == arguments.topic}
    held = sorted(lane.partition for lane, state in stops.items() if state.stop and state.stop.reason == "held")
    lanes = sorted(lane for lane in stops if lane.partition not in held)
    # All plans before the first change: where one is refused, nothing is changed.
    resets = [_reset(arguments, deployment, stores, lane, stops[lane]) for lane in lanes]
    orders = [reset.order(stores) for reset in resets]
    for order in orders:
        order.programs |= {"error": "", "executed": bool(arguments.execute)}
    which = "Partitions" if held[1:] else "Partition"
    stay = [f"{which} {', '.join(map(str, held))}: held by an order, and stays so."] if held else []
    return obey(
        arguments,
        orders,
        notes=stay + foreign_notes(deployment, stores, lanes),
        shown=lambda _: _show_all(resets),
        many=True,
        nothing=" ".join([*stay, "No lane of this topic is stopped: nothing to do."]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reset:
    """The reset of one lane."""

    lane: Lane
    head: Head
    plan: ResetPlan
    steps: list[ResetStep]
    untrue_from: int | None
    """See `Stop.untrue_from`."""
    gone: int | None = None
    """The partitions that the topic has now, where this one is not among them."""

    def order(self, stores: Stores) -> Order:
        """The order to carry it out."""
        programs = lane_as_json(self.lane) | {
            "position": self.head.position,
            "generation": self.head.generation,
            "to": self.plan.link.next,
            "to_generation": self.plan.link.to_generation,
        }
        carry_out = partial(_carry_out, self.plan, stores, self.untrue_from)
        plan = [" ".join(filter(None, step)) for step in self.steps]
        return Order(about=self.lane, plan=plan, carry_out=carry_out, programs=programs)


def _reset(
    arguments: argparse.Namespace, deployment: DeployedFlows, stores: Stores, lane: Lane, state: LaneState
) -> _Reset:
    source = ClusterView.source(deployment, lane.flow)
    gone = source.has_lost(lane)
    head = believed(stores.chains.heads([lane])[lane], state)
    behind = arguments.to == "target" and gone is None
    if behind:
        to = _behind_target(deployment, lane, state.stop, head.position if head.expired else 0)
    else:
        to = 0 if gone is not None else _resolved(arguments.to, lane, source)
    replicated: ReplicatedRanges = ()
    if gone is None:
        stop, ordered = state.stop, arguments.until
        replicated = _replicated(deployment, stores, source, lane, head, stop=stop, to=to, ordered=ordered)
        if stop is not None and stop.begins_replicated and head.position < min(to, stop.upstream_offset):
            logs = _comparison(deployment, stores, lane)
            state = replace(state, stop=_waits_for(source, logs, lane, head, stop))
    terms = {"reason": arguments.reason, "now": now_ms(), "behind_target": behind, "replicated": replicated}
    plan = plan_reset(lane, head, state, to, **terms)
    untrue = None if state.stop is None else state.stop.untrue_from
    if gone is not None:
        steps = [*_closing_steps(plan, head, gone)]
        return _Reset(lane=lane, head=head, plan=plan, steps=steps, untrue_from=untrue, gone=gone)
    advice = source.place_advice(lane, deployment.mapping_group(lane), to)
    steps = [*_reset_steps(plan, head, behind=behind)]
    steps += [(each, "") if each.startswith("The source holds") else ("", each) for each in advice]
    return _Reset(lane=lane, head=head, plan=plan, steps=steps, untrue_from=untrue)


def _replicated(
    deployment: DeployedFlows,
    stores: Stores,
    source: ClusterView,
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
    logs, soon = _comparison(deployment, stores, lane), deadline_in(ANSWER_SECONDS)

    def read() -> ReplicatedRanges:
        found = left
        if to < head.position:
            # Below the place where a log parts its runs are of the log as it is, too.
            above = max(to, stop.upstream_offset) if stop is not None and stop.reason == "truncated" else to
            found = logs.replicated(lane, head, above, soon, known=ordered)
        if not found or found[0][0] <= to:
            return found
        return ((logs.stands_at(lane, to, found[0][0], soon), found[0][1]), *found[1:])

    found = source.read(read)
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


def _waits_for(source: ClusterView, logs: LogComparison, lane: Lane, head: Head, stop: Stop) -> Stop:
    """The stop to which a lane is on its way, behind the last record that the source still has before it.

    What was there when the lane was sent there may have expired since, or been compacted away.
    """
    soon = deadline_in(ANSWER_SECONDS)
    stands = source.read(lambda: logs.stands_at(lane, head.position, stop.upstream_offset, soon))
    return stop if stands is None else replace(stop, upstream_offset=stands)


def _comparison(deployment: DeployedFlows, stores: Stores, lane: Lane) -> LogComparison:
    from mirrorless.adapters.kafka.committed_log import KafkaCommittedLog  # noqa: PLC0415 -- commands without Kafka start sooner
    from mirrorless.adapters.kafka.log_epochs import KafkaLogEpochs  # noqa: PLC0415 -- same

    cluster, flow = deployment.settings(lane.flow).source, str(lane.flow)
    return LogComparison(
        chains=stores.chains, epochs=KafkaLogEpochs(cluster, flow=flow), log=KafkaCommittedLog(cluster, flow=flow)
    )


def _show_all(resets: Sequence[_Reset]) -> None:
    """A line for each lane, and once what is true of all of them; `--json` has the steps of each."""
    first = resets[0]
    console().print(table(f"{first.lane.flow} {first.lane.topic}", _COLUMNS, resets))
    general = dict.fromkeys(of_all for reset in resets for _, of_all in reset.steps if of_all)
    for step in (f"A new generation of each lane begins: {first.plan.link.reason}", _ANEW, *general):
        say(f"  - {step}")


def _again(reset: _Reset) -> tuple[int, int] | None:
    return reset.plan.repeated if reset.gone is None else None


def _range(first: int, after: int) -> str:
    return f"{first} to {after - 1}"


_COLUMNS: TableColumns[_Reset] = (
    (">lane", lambda reset: reset.lane.partition),
    (">stands at", lambda reset: str(reset.head.position)),
    (">begins at", lambda reset: "closed" if reset.gone is not None else str(reset.plan.link.next)),
    (">generation", lambda reset: reset.plan.link.to_generation),
    (">replicated again", lambda reset: _range(*again) if (again := _again(reset)) else None),
    (">skipped", lambda reset: _range(loss.first, loss.next) if (loss := reset.plan.loss) else None),
    (">in doubt", lambda reset: _range(run.position, run.next) if (run := reset.plan.given_up) else None),
)

_ANEW = "The map translates offsets of the new generation only. Drop the lane's stop and quarantine orders."


def _carry_out(plan: ResetPlan, stores: Stores, untrue_from: int | None) -> None:
    """1. The loss, so that nothing is skipped in silence. 2. The past. 3. The link. 4. The stop and the orders."""
    if plan.loss is not None:
        stores.ledger.note(plan.loss)
    if untrue_from is not None:
        PastStore(documents=stores.checkpoints).cut(plan.link.lane, untrue_from)
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


def _stands(head: Head) -> ResetStep:
    least = ", or further on: the end of its map has expired" if head.expired else ""
    return f"The lane stands at upstream offset {head.position}, generation {head.generation}{least}.", ""


def _reset_steps(plan: ResetPlan, head: Head, *, behind: bool) -> Iterator[ResetStep]:
    link = plan.link
    yield _stands(head)
    if behind:
        yield f"What the target has ends before upstream offset {link.next}.", ""
    begin = f"begin generation {link.to_generation} at upstream offset {link.next}"
    yield f"Close this chain, and {begin}: {link.reason}", ""
    if (loss := plan.loss) is not None:
        count = numbered(loss.next - loss.first, "upstream offset")
        yield f"Skip {count}: {_range(loss.first, loss.next)}.", "What is skipped is noted in the loss ledger."
    if plan.repeated is not None:
        twice = "Where the source topic still holds the records that were replicated before, they come twice."
        yield f"Upstream offsets {_range(*plan.repeated)} were replicated before.", twice
    if plan.stop is not None:
        of_all = "What was replicated of the topic as it is does not come twice: lanes stand still before it, and "
        command = "`mirrorless lanes stopped` has the command that goes on behind it."
        yield f"Stand still at {plan.stop.upstream_offset}: {sentence(plan.stop.detail)}", of_all + command
    if (run := plan.given_up) is not None:
        of_all = "Of a run in doubt it can no longer be known whether its records are on the target."
        yield f"Give up the run in doubt [{run.position}, {run.next}).", of_all
    yield _ANEW, ""


def _closing_steps(plan: ResetPlan, head: Head, partitions: int) -> Iterator[ResetStep]:
    """The steps of the reset of a lane whose partition is gone. Args: partitions: that the topic has now."""
    lane, generation = plan.link.lane, plan.link.to_generation
    yield _stands(head)
    yield "This closes the lane.", f"{lane.topic} has {numbered(partitions, 'partition')} on the source now."
    yield "", "The target keeps the records of a closed lane; status and verify leave it out."
    again = f"Should the source get partition {lane.partition} again, generation {generation}"
    yield f"{again} begins at its first record.", ""


def destination(text: str) -> str | int:
    """An upstream offset, `earliest`, `latest` or `target`."""
    return text if text in {"earliest", "latest", "target"} else offset(text)


def _resolved(to: str | int, lane: Lane, source: ClusterView) -> int:
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


def named_lane(arguments: argparse.Namespace) -> tuple[DeployedFlows, Stores, Lane, LaneState]:
    """The lane that FLOW, TOPIC and PARTITION name, with its state. Raises like `DeployedFlows.flow_name`."""
    deployment = DeployedFlows.of(arguments)
    lane = deployment.lane(arguments.flow, arguments.topic, arguments.partition)
    stores = deployment.stores(lane.flow)
    return deployment, stores, lane, stores.states.read([lane]).get(lane, RUNNING)


def _behind_target(deployment: DeployedFlows, lane: Lane, stop: Stop | None, since: int) -> int:
    """The upstream offset behind the last record that the target has of a lane.

    Args:
        deployment: of the flow.
        lane: which is not written to meanwhile.
        stop: of the lane.
        since: the upstream offset below which all was replicated for certain.

    Raises:
        BadInput: it cannot be found.
        Retriable: a cluster does not answer.
    """
    settings = deployment.settings(lane.flow)
    if settings.rule_of(lane.topic) is not None:
        raise _unknown(lane, "a rule changes its records, so those of the target are not found on the source")
    if settings.delivery == "at_least_once" and stop is not None and stop.reason == "broken":
        raise _unknown(lane, "without transactions, what was written behind records that are gone stands there too")
    search = PlaceSearch(settings=settings, topic=lane.topic, ours=True)
    if lane not in search.lanes():
        raise _unknown(lane, "the source or the target does not show this partition")
    if hidden := search.hidden(lane):
        raise _unknown(lane, hidden, hint="wait for a minute; if it stays, see `mirrorless status`")
    (found,) = search.places({}, [lane], {lane: since})
    if found.found.place is None:
        raise _unknown(lane, found.found.why)
    return found.found.place


def _unknown(lane: Lane, what: str, *, hint: str = "") -> BadInput:
    return BadInput(
        f"--to target cannot be resolved: {what}",
        where=str(lane),
        hint=hint or "compare both logs, and name the upstream offset as a number",
    )
