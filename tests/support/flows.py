"""Settings of flows, as tests need them: two aliases, two addresses, and what is about the test."""

from __future__ import annotations

from typing import Any

from mirrorless.chain.lane import FlowName
from mirrorless.flow.settings import ClusterSettings, FlowSettings


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
