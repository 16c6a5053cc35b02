"""`mirrorless status --watch`: the status again and again, in place on a terminal, with records a second."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from cli.flow_status import FlowStatus, TopicStatus
from cli.output import console
from cli.status_tables import Rates, rendered
from mirrorless.lane import FlowName

EVERY_SECONDS = 2.0
"""Between two looks."""


def rates_between(before: Sequence[FlowStatus], now: Sequence[FlowStatus]) -> Rates:
    """How fast the lanes of each topic have moved between two looks; a lane that was reset does not count."""
    earlier = {(flow.flow, topic.topic): (flow.at, topic) for flow in before for topic in flow.topics}
    rates: dict[tuple[FlowName, str], float] = {}
    for flow in now:
        for topic in flow.topics:
            at, old = earlier.get((flow.flow, topic.topic), (flow.at, topic))
            if flow.at > at:
                rates[flow.flow, topic.topic] = _moved(old, topic) * 1000 / (flow.at - at)
    return rates


def _moved(before: TopicStatus, now: TopicStatus) -> int:
    heads = {lane.lane: lane.head for lane in before.lanes}
    return sum(
        max(0, lane.head.position - old.position)
        for lane in now.lanes
        if (old := heads.get(lane.lane)) is not None and old.generation == lane.head.generation
    )


def looks(
    read: Callable[[], list[FlowStatus]], *, pause: Callable[[float], None] = time.sleep
) -> Iterator[tuple[list[FlowStatus], Rates]]:
    """The flows, and the rates since the look before, without an end."""
    before: list[FlowStatus] = []
    while True:
        flows = read()
        yield flows, rates_between(before, flows)
        before = flows
        pause(EVERY_SECONDS)


def watch(read: Callable[[], list[FlowStatus]], *, by_lane: bool) -> int:
    """Show every look until Ctrl-C. Exit code of the last."""
    from rich.console import Group  # noqa: PLC0415 -- programs need no tables
    from rich.live import Live  # noqa: PLC0415 -- same

    screen, flows = console(soft_wrap=False), list[FlowStatus]()
    try:
        if not screen.is_terminal:
            for flows, rates in looks(read):
                shown = rendered(flows, by_lane=by_lane, width=screen.width, rates=rates)
                screen.print(*shown, sep="\n", soft_wrap=True)
        else:
            with Live(console=screen, auto_refresh=False) as live:
                for flows, rates in looks(read):
                    shown = rendered(flows, by_lane=by_lane, width=screen.width, rates=rates)
                    live.update(Group(*shown), refresh=True)
    except KeyboardInterrupt:
        pass  # the end
    return int(any(flow.needs_operator for flow in flows))
