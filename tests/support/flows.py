"""Settings of flows, as tests need them: two aliases, two addresses, and what is about the test."""

from __future__ import annotations

from typing import Any

import msgspec

from mirrorless.chain.lane import FlowName
from mirrorless.flow.settings import ClusterSettings, FlowSettings
from mirrorless.jobs.copy_task import CopyTask, OffsetRange


def make_flow(
    flow: FlowName | str = "us-east->eu-west",
    *,
    source: str = "source:9092",
    target: str = "target:9092",
    region: str | None = None,
    **settings: Any,
) -> FlowSettings:
    """The settings of a flow. Args: source, target: bootstrap servers. region: of the target."""
    source_alias, _, target_alias = str(flow).partition("->")
    return FlowSettings(
        flow=str(flow),
        source=ClusterSettings(alias=source_alias, bootstrap=source),
        target=ClusterSettings(alias=target_alias, bootstrap=target, region=region),
        **settings,
    )


def make_control(*topics: str, flow: FlowSettings | None = None, **settings: Any) -> FlowSettings:
    """What the scheduled functions of a flow get. Args: topics: that it takes. flow: the usual one, if None."""
    flow = flow or make_flow()
    return msgspec.structs.replace(flow, aliases=(flow.source.alias, flow.target.alias), topics=topics, **settings)


def make_copy_task(partition: int = 0, *ranges: tuple[int, int], topic: str = "orders", **more: Any) -> CopyTask:
    """The copy of a lane in a job. Args: ranges: of upstream offsets. more: in the place of what is usual."""
    usual: dict[str, Any] = {
        "settings": make_flow(),
        "lane_topic": topic,
        "read_topic": topic,
        "write_topic": f"us-east.{topic}",
        "run_id": "backfill-1",
    }
    offsets = tuple(OffsetRange(*each) for each in ranges)
    return CopyTask(partition=partition, ranges=offsets, **(usual | more))
