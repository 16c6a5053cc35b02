"""`mirrorless migrate plan | take-over | give-back FLOW`: where MirrorMaker 2 stands, and who goes on from there."""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from cli.args import add_deployment, add_flow
from cli.copied_places import LanePlace, PlaceSearch
from cli.deployment import DeployedFlows
from cli.output import TableColumns, console, lane_as_json, print_json, table
from mirrorless.chain.lane import FlowName, Lane
from mirrorless.chain.lane_state import NEW_LANE, Head
from mirrorless.mm2.source_offsets import offsets_topic
from mirrorless.reports.format import numbered

if TYPE_CHECKING:
    from mirrorless.verify.copied_end import CopiedTwice

PlaceState = Literal["exact", "left out", "has a chain"]

SHOWN: Final = 10
"""Lanes of a kind that people are shown, at most; `--json` has all."""


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands below `migrate` that are about one flow."""
    plan = commands.add_parser(
        "plan",
        help="show where MirrorMaker 2 stands in each lane of a flow, by its offsets and by both logs; change nothing",
        epilog="Example: mirrorless migrate plan 'us-east->eu-west'",
    )
    add_flow(plan)
    _add_offsets(plan)
    add_deployment(plan, run_plan)


def _add_offsets(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC", nargs="?", help="the topic's name on the source (default: every one)")
    parser.add_argument(
        "--offsets-topic",
        metavar="NAME",
        help="on the target, a Connect cluster's offset.storage.topic (default: mm2-offsets.ALIAS.internal)",
    )
    parser.add_argument("--connector", metavar="NAME", help="MirrorMaker's source connector, where there are several")


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundLane:
    """One lane, and what may be done with it."""

    place: LanePlace
    head: Head

    @property
    def lane(self) -> Lane:
        """The lane."""
        return self.place.lane

    @property
    def state(self) -> PlaceState:
        """What may be done."""
        if self.head != NEW_LANE:
            return "has a chain"
        return "left out" if self.place.found.place is None else "exact"

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


def search_of(deployment: DeployedFlows, arguments: argparse.Namespace) -> PlaceSearch:
    """The search that the arguments name."""
    from mirrorless.adapters.kafka.source_offsets import KafkaSourceOffsets  # noqa: PLC0415 -- commands without Kafka start sooner

    settings = deployment.settings(deployment.flow_name(arguments.flow))
    topic = arguments.offsets_topic or offsets_topic(settings.policy.prefix(settings.source.alias))
    offsets = KafkaSourceOffsets(settings.target, topic, flow=settings.flow)
    return PlaceSearch(settings=settings, offsets=offsets, connector=arguments.connector, topic=arguments.topic)


def _planned(deployment: DeployedFlows, arguments: argparse.Namespace) -> TakeOverPlan:
    search = search_of(deployment, arguments)
    flow, lanes = search.settings.name, search.lanes()
    heads = deployment.stores(flow).chains.heads(lanes)
    if moving := search.moving(lane for lane in lanes if heads[lane] == NEW_LANE):
        return TakeOverPlan(flow=flow, lanes=[], moving=moving)
    found = [FoundLane(place=each, head=heads[each.lane]) for each in search.places(search.said(), lanes)]
    return TakeOverPlan(flow=flow, lanes=found, moving="")


def _answer(plan: TakeOverPlan) -> dict[str, Any]:
    return {"flow": str(plan.flow), "moving": plan.moving, "lanes": [each.as_json() for each in plan.lanes]}


_TopicLanes = tuple[str, Sequence[FoundLane]]

_COLUMNS: TableColumns[_TopicLanes] = (
    ("=topic", lambda row: row[0]),
    (">lanes", lambda row: len(row[1])),
    (">exact", lambda row: _count(row[1], "exact")),
    (">left out", lambda row: _count(row[1], "left out") or None),
    (">have a chain", lambda row: _count(row[1], "has a chain") or None),
    (">duplicates", lambda row: sum(each.duplicates for each in row[1]) or None),
)


def _count(lanes: Iterable[FoundLane], state: PlaceState) -> int:
    return sum(each.state == state for each in lanes)


def _show(plan: TakeOverPlan) -> None:
    if plan.moving:
        print(f"MirrorMaker does not stand still: {plan.moving}.")
        print("Stop it, wait until its workers' group is empty (some ten seconds after a kill), and look again.")
        return
    topics: dict[str, list[FoundLane]] = defaultdict(list)
    for each in plan.lanes:
        topics[each.lane.topic].append(each)
    console().print(table(f"{plan.flow}: what MirrorMaker has copied", _COLUMNS, topics.items()))
    for line in [*_duplicates(plan.lanes), *_left_out(plan.of("left out"))]:
        print(line)


def _duplicates(lanes: Sequence[FoundLane]) -> list[str]:
    rows = [(each.lane, row) for each in lanes for row in each.place.found.twice]
    if not rows:
        return []
    lines = [f"  {lane.topic}-{lane.partition}: {_twice(row)}" for lane, row in rows[:SHOWN]]
    if rows[SHOWN:]:
        lines.append(f"  and {len(rows) - SHOWN} more rows: --json has all")
    return ["MirrorMaker wrote these twice, among the records that were compared; they stay where they are:", *lines]


def _twice(row: CopiedTwice) -> str:
    (first, following), (above, below) = row.upstream, row.downstream
    return f"{numbered(row.records, 'record')}, upstream {first} to {following - 1} again at {above} to {below - 1}"


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
    return lines
