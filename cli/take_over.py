"""`mirrorless migrate plan | take-over FLOW`: where another replicator stands, and a flow that goes on from there."""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from cli.args import add_deployment, add_flow, add_order, add_without_header
from cli.copied_places import ANSWER_SECONDS, TOGETHER, LanePlace, PlaceSearch, tell
from cli.deployment import DeployedFlows, Stores
from cli.orders import Order, obey
from cli.output import TableColumns, console, lane_as_json, print_json, say, sentence, table
from cli.pause import pause_waits
from mirrorless.chain.lane import FlowName, Lane
from mirrorless.chain.lane_state import NEW_LANE, Head, Stop
from mirrorless.clock import deadline_in, now_ms
from mirrorless.errors import Refused
from mirrorless.flow.naming import reset_lane
from mirrorless.groups.ownership import ClaimedOffsets, committed_by_another
from mirrorless.lanes.taken_over import link_behind, may_begin, read_given_back, was_taken_over
from mirrorless.mm2.source_offsets import offsets_topic, worker_group
from mirrorless.ports.kafka import OffsetAndMetadata
from mirrorless.protocol.past import PastStore
from mirrorless.reports.format import numbered
from mirrorless.scheduled.scope import FlowScope
from mirrorless.topics.pause import read_pause

if TYPE_CHECKING:
    from mirrorless.chain.run import Span
    from mirrorless.config import Flow
    from mirrorless.verify.copied_end import CopiedTwice

PlaceState = Literal["exact", "left out", "taken over", "has a chain"]

_TAIL: Final = "target-tail"

SHOWN: Final = 10
"""Lanes of a kind that people are shown, at most; `--json` has all."""


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands below `migrate` that are about one flow."""
    plan = commands.add_parser(
        "plan",
        help="show where MirrorMaker 2, or another replicator, stands in each lane of a flow; change nothing",
        epilog="Example: mirrorless migrate plan 'us-east->eu-west'",
    )
    add_flow(plan)
    add_offsets(plan)
    _add_way(plan)
    add_deployment(plan, run_plan)
    take_over = commands.add_parser(
        "take-over",
        help="let the chains of a flow's lanes begin behind what has been copied, and its mappings too; hold "
        "the lanes without an exact place",
        epilog="Example: mirrorless migrate take-over 'us-east->eu-west' --execute",
    )
    add_flow(take_over)
    add_offsets(take_over)
    _add_way(take_over)
    add_order(take_over)
    add_deployment(take_over, run_take_over)


def add_offsets(parser: argparse.ArgumentParser) -> None:
    """Add TOPIC, and where MirrorMaker keeps its offsets."""
    parser.add_argument("topic", metavar="TOPIC", nargs="?", help="the topic's name on the source (default: every one)")
    parser.add_argument(
        "--offsets-topic",
        metavar="NAME",
        help="on the target, a Connect cluster's offset.storage.topic (default: mm2-offsets.ALIAS.internal)",
    )
    parser.add_argument("--connector", metavar="NAME", help="MirrorMaker's source connector, where there are several")


def _add_way(parser: argparse.ArgumentParser) -> None:
    """Add what the places are known by."""
    parser.add_argument(
        "--from",
        dest="places_from",
        choices=("mm2-offsets", _TAIL),
        default="mm2-offsets",
        metavar="SIGN",
        help="what shows how far the copying has come: mm2-offsets, beside both logs; or target-tail, both logs alone, "
        "for any other replicator (default: mm2-offsets)",
    )
    add_without_header(parser)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundLane:
    """One lane, and what may be done with it."""

    place: LanePlace
    head: Head
    taken: bool
    """Whether its chain began so."""
    given_back_at: int | None
    """The position at which it was given back last."""

    @property
    def lane(self) -> Lane:
        """The lane."""
        return self.place.lane

    @property
    def state(self) -> PlaceState:
        """What may be done."""
        if not self.is_mirror_makers:
            return "taken over" if self.taken else "has a chain"
        return "left out" if self.place.found.place is None else "exact"

    @property
    def is_mirror_makers(self) -> bool:
        """Whether no chain of ours goes on in it."""
        return may_begin(self.head, self.given_back_at)

    @property
    def begins(self) -> bool:
        """Whether the flow has nothing of its own in it."""
        return self.state in {"exact", "left out"} or (self.taken and self.head.run is None)

    @property
    def duplicates(self) -> int:
        """Records that MirrorMaker has written more than once."""
        return self.place.found.duplicates

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        found = self.place.found
        return lane_as_json(self.lane) | {
            "state": self.state,
            "place": found.place,
            "why": found.why,
            "mirrormaker_goes_on_at": self.place.behind_said,
            "duplicates": [
                {"records": each.records, "upstream": each.upstream, "downstream": each.downstream}
                for each in found.twice
            ],
            "strangers": found.strangers,
            "past": {"pairs": max(0, len(self.place.past) - 2), "since": _since(self.place.past)},
            "position": self.head.position,
            "generation": self.head.generation,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeOverPlan:
    """All lanes of a flow, as they were found."""

    flow: FlowName
    lanes: Sequence[FoundLane]
    moving: str
    """Why MirrorMaker does not stand still; empty where it does."""
    groups: Mapping[str, ClaimedOffsets | str] = field(default_factory=dict)
    """By name, those with offsets on the target: the claim of what MirrorMaker has committed, or why it has not."""

    def of(self, state: PlaceState) -> list[FoundLane]:
        """The lanes in one state."""
        return [each for each in self.lanes if each.state == state]


def run_plan(arguments: argparse.Namespace) -> int:
    """Show the places. Exit code 1: MirrorMaker still writes, or some lane has no exact place."""
    deployment = DeployedFlows.of(arguments)
    plan = _planned(deployment, arguments)
    if arguments.json:
        print_json(_answer(plan))
    else:
        _show(plan)
    return int(bool(plan.moving or plan.of("left out")))


def search_of(
    deployment: DeployedFlows, arguments: argparse.Namespace, *, by_tail: bool = False, unseen: Iterable[str] = ()
) -> PlaceSearch:
    """The search that the arguments name. Args: by_tail: by the logs alone. unseen: headers that are not compared."""
    from mirrorless.adapters.kafka.source_offsets import KafkaSourceOffsets  # noqa: PLC0415 -- commands without Kafka start sooner

    settings, topic = deployment.settings(deployment.flow_name(arguments.flow)), arguments.offsets_topic
    alias = settings.policy.prefix(settings.source.alias)
    return PlaceSearch(
        settings=settings,
        topic=arguments.topic,
        offsets=None
        if by_tail
        else KafkaSourceOffsets(settings.target, topic or offsets_topic(alias), flow=settings.flow),
        connector=arguments.connector,
        workers="" if topic else worker_group(alias),
        unseen=frozenset(unseen),
    )


def _planned(deployment: DeployedFlows, arguments: argparse.Namespace) -> TakeOverPlan:
    by_tail, unseen = arguments.places_from == _TAIL, arguments.without_header
    search = search_of(deployment, arguments, by_tail=by_tail, unseen=unseen)
    flow, lanes = search.settings.name, search.lanes()
    stores = deployment.stores(flow)
    heads, given_back = stores.chains.heads(lanes), read_given_back(stores.documents, flow)
    theirs = [lane for lane in lanes if may_begin(heads[lane], given_back.get(lane))]
    if moving := search.moving(theirs):
        return TakeOverPlan(flow=flow, lanes=[], moving=moving)
    begun = {lane: stores.chains.at_or_before(lane, 0, 0) for lane in lanes if heads[lane] != NEW_LANE}
    found = [
        FoundLane(
            place=each,
            head=heads[each.lane],
            taken=was_taken_over(begun.get(each.lane)),
            given_back_at=given_back.get(each.lane),
        )
        for each in search.places(search.said(), lanes, {lane: heads[lane].position for lane in theirs})
    ]
    return TakeOverPlan(
        flow=flow, lanes=found, moving="", groups=_groups(search, [each for each in found if each.begins])
    )


def _groups(search: PlaceSearch, lanes: Iterable[FoundLane]) -> dict[str, ClaimedOffsets | str]:
    """See `TakeOverPlan.groups`. Args: lanes: on which the flow itself has committed nothing yet."""
    from mirrorless.adapters.kafka.groups import KafkaGroups  # noqa: PLC0415 -- commands without Kafka start sooner

    settings, scope = search.settings, FlowScope.of(search.settings)
    places = {scope.remote_partition(each.lane): each.lane for each in lanes}
    groups, soon = KafkaGroups(settings.target, flow=settings.flow), deadline_in(ANSWER_SECONDS)
    checkpoints = {} if search.offsets is None or not places else search.checkpoints()
    said = {name: each for name, each in checkpoints.items() if scope.group(name)}
    committed, states = groups.committed(said, soon), groups.states(said, soon)
    found: dict[str, ClaimedOffsets | str] = {}
    for name in sorted(said):
        there = {places[place]: each for place, each in committed.get(name, {}).items() if place in places}
        if there:
            of_lanes = {places[place]: each for place, each in said[name].items() if place in places}
            found[name] = committed_by_another(name, of_lanes, there, states[name])
    return found


def run_take_over(arguments: argparse.Namespace) -> int:
    """Take lanes over. Exit code 1: some lane has no exact place and is held, or was begun by somebody else meanwhile.

    Raises:
        Refused: MirrorMaker still writes, or the flow is not paused. Nothing was changed.
    """
    deployment = DeployedFlows.of(arguments)
    plan = _planned(deployment, arguments)
    stores, flow = deployment.stores(plan.flow), deployment.flow(plan.flow)
    if plan.moving:
        raise Refused(f"the target does not stand still: {plan.moving}", where=str(plan.flow), hint=STOP_IT)
    refuse_unless_paused(stores, flow)
    orders = [_order(each, stores) for each in plan.lanes]
    due = [(order, order.carry_out) for order in orders if order.carry_out is not None]
    for done, (order, carry_out) in enumerate(due, 1):
        order.carry_out = partial(_carry_out, carry_out, done, len(due))
    by_topic: dict[str, list[FoundLane]] = defaultdict(list)
    for each in plan.lanes:
        by_topic[each.lane.topic].append(each)
    orders += [_seeding(deployment, topic, lanes) for topic, lanes in by_topic.items()]
    orders += [_claiming(group, found, stores, plan.flow) for group, found in plan.groups.items()]
    code = obey(
        arguments,
        orders,
        notes=[f"`mirrorless flow resume '{plan.flow}' --execute` lets it go on, once all is done."],
        shown=lambda _: _show(plan),
        many=True,
        nothing="The flow has no lane with a remote partition: nothing to do.",
    )
    return code or int(bool(plan.of("left out")))


def _carry_out(carry_out: Callable[[], str | None], done: int, count: int) -> str | None:
    """Carry an order out, and say now and then how far that is."""
    said = carry_out()
    if done % TOGETHER == 0 or done == count:
        tell("took over, or held,", done, count)
    return said


STOP_IT: Final = (
    "stop what writes there, wait until its group is empty (some ten seconds after a kill), and run this again"
)


def refuse_unless_paused(stores: Stores, flow: Flow) -> None:
    """Refuse what must not be done while records move.

    Raises:
        Refused: the flow is not paused, or the pause has not taken effect yet.
    """
    pause = read_pause(stores.documents, flow.name)
    waits = pause_waits(stores, flow, pause) if pause.paused else "the order to pause it"
    if waits:
        hint = f"`mirrorless flow pause '{flow.name}' --execute` pauses it, and waits for that"
        raise Refused(f"the flow may move records meanwhile: it waits for {waits}", where=str(flow.name), hint=hint)


def _order(found: FoundLane, stores: Stores) -> Order:
    """What is done to one lane."""
    lane, place = found.lane, found.place.found.place

    def begin() -> None:
        assert place is not None  # noqa: S101 -- it is exact
        link = link_behind(lane, found.head, place, now=now_ms())
        stores.states.begin_anew(lane)  # it may have been held; the flow is paused
        PastStore(documents=stores.checkpoints).begin(lane, link.to_generation, found.place.past)
        stores.chains.reset(link)
        stores.states.begin(lane, link.to_generation)

    def hold() -> None:
        detail = f"another replicator copied it, and no exact place was found: {found.place.found.why}"
        stores.states.stop(lane, Stop(reason="held", upstream_offset=found.head.position, detail=detail, at=now_ms()))

    steps = {"exact": (f"Begin its chain at upstream offset {place}.", begin), "left out": ("Hold it.", hold)}
    said, carry_out = steps.get(found.state, ("Leave it.", None))
    return Order(about=lane, plan=[said], carry_out=carry_out, programs=found.as_json() | {"error": ""})


def _seeding(deployment: DeployedFlows, topic: str, lanes: Sequence[FoundLane]) -> Order:
    """The commit of the places for the group of a topic's mapping, which has no member while the flow is paused."""
    settings = deployment.settings(lanes[0].lane.flow)
    group, offsets = settings.consumer_group(topic), {}
    for each in lanes:
        if each.begins:
            place = each.place.found.place if each.state == "exact" else each.place.behind_said
            at = each.head.position if each.state == "taken over" else place
            offsets[topic, each.lane.partition] = OffsetAndMetadata(max(at or 0, each.place.source_start))

    def commit() -> None:
        from mirrorless.adapters.kafka.groups import KafkaGroups  # noqa: PLC0415 -- commands without Kafka start sooner

        KafkaGroups(settings.source, flow=settings.flow).commit(group, offsets, deadline_in(ANSWER_SECONDS))

    seeded = {partition: offset.offset for (_, partition), offset in sorted(offsets.items())}
    return Order(
        about=topic,
        plan=[f"Commit the places for {group}."],
        carry_out=commit if offsets else None,
        programs={"topic": topic, "group": group, "offsets": seeded, "error": ""},
    )


def _claiming(group: str, found: ClaimedOffsets | str, stores: Stores, flow: FlowName) -> Order:
    """The claim of a group's offsets, which the flow's next round takes over."""

    def claim() -> None:
        if not isinstance(found, str):
            stores.checkpoints.write(flow, {found.key: msgspec.json.encode(found)})

    independent = isinstance(found, str)
    return Order(
        about=f"group {group}",
        plan=["Leave its offsets on the target." if independent else "Its offsets on the target become the flow's."],
        carry_out=None if independent else claim,
        programs=_group_as_json(group, found) | {"error": ""},
    )


def _group_as_json(group: str, found: ClaimedOffsets | str) -> dict[str, Any]:
    if isinstance(found, str):
        return {"group": group, "becomes": "independent", "why": found, "offsets": {}}
    return {"group": group, "becomes": "owned", "why": "", "offsets": found.offsets}


def _answer(plan: TakeOverPlan) -> dict[str, Any]:
    return {
        "flow": str(plan.flow),
        "moving": plan.moving,
        "lanes": [each.as_json() for each in plan.lanes],
        "groups": [_group_as_json(name, each) for name, each in plan.groups.items()],
    }


_TopicLanes = tuple[str, Sequence[FoundLane]]

_COLUMNS: TableColumns[_TopicLanes] = (
    ("=topic", lambda row: row[0]),
    (">lanes", lambda row: len(row[1])),
    (">exact", lambda row: _count(row[1], "exact")),
    (">left out", lambda row: _count(row[1], "left out") or None),
    (">taken over", lambda row: _count(row[1], "taken over") or None),
    (">have a chain", lambda row: _count(row[1], "has a chain") or None),
    (">duplicates", lambda row: sum(each.duplicates for each in row[1]) or None),
)


def _count(lanes: Iterable[FoundLane], state: PlaceState) -> int:
    return sum(each.state == state for each in lanes)


def _show(plan: TakeOverPlan) -> None:
    if plan.moving:
        say(f"The target does not stand still: {plan.moving}.")
        say(sentence(STOP_IT))
        return
    topics: dict[str, list[FoundLane]] = defaultdict(list)
    for each in plan.lanes:
        topics[each.lane.topic].append(each)
    console().print(table(f"{plan.flow}: what has been copied", _COLUMNS, topics.items()))
    for line in [*_duplicates(plan.lanes), *_left_out(plan.of("left out")), *_of_groups(plan.groups)]:
        say(line)


def _duplicates(lanes: Sequence[FoundLane]) -> list[str]:
    rows = [(each.lane, row) for each in lanes for row in each.place.found.twice]
    if not rows:
        return []
    lines = [f"  {lane.topic}-{lane.partition}: {_twice(row)}" for lane, row in rows[:SHOWN]]
    if rows[SHOWN:]:
        lines.append(f"  and {len(rows) - SHOWN} more rows: --json has all")
    return ["These were written twice, among the records that were compared; they stay where they are:", *lines]


def _twice(row: CopiedTwice) -> str:
    (first, following), (above, below) = row.upstream, row.downstream
    return f"{numbered(row.records, 'record')}, upstream {first} to {following - 1} again at {above} to {below - 1}"


def _of_groups(groups: Mapping[str, ClaimedOffsets | str]) -> list[str]:
    if not groups:
        return []
    others = {name: why for name, why in groups.items() if isinstance(why, str)}
    taken = len(groups) - len(others)
    lines = [
        f"MirrorMaker has committed the offsets of {numbered(taken, 'group')} on the target: they become the flow's."
    ]
    lines += [f"  {name} stays independent: {why}" for name, why in list(others.items())[:SHOWN]]
    return [*lines, f"  and {len(others) - SHOWN} more: --json has all"] if len(others) > SHOWN else lines


def _since(past: Sequence[Span]) -> int | None:
    """The upstream offset from which on a past has pairs; None where it has none."""
    return past[1].upstream if len(past) > 2 else None  # noqa: PLR2004 -- the first and the last have no record


def _left_out(lanes: Sequence[FoundLane]) -> list[str]:
    if not lanes:
        return []
    lines = ["No exact place was found for these:"]
    lines += [
        f"  {each.lane.topic}-{each.lane.partition}: {each.place.found.why}"
        + ("" if each.place.said is None else f"; MirrorMaker would go on at {each.place.behind_said}")
        for each in lanes[:SHOWN]
    ]
    if lanes[SHOWN:]:
        lines.append(f"  and {len(lanes) - SHOWN} more: --json has all")
    first, found = lanes[0], lanes[0].place.found
    to = first.place.behind_said if found.earlier is None else found.earlier
    choices = reset_lane(first.lane, "latest" if to is None else to)
    lines.append(f"They are held when the flow is taken over. {choices} lets this one go on from there.")
    if found.earlier is not None:
        lines.append("From there nothing is lost, and what is on the target already comes once more.")
        if first.head.position > found.earlier:
            position = reset_lane(first.lane, first.head.position)
            lines.append(f"{position} goes on where it was given back, and leaves the target as it is.")
    elif to is not None:
        lines.append("From where MirrorMaker would go on, nothing is lost, and some may come twice.")
    return lines
