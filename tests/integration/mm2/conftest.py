"""The clusters of MM2's own integration tests, `primary` and `backup`, with our flows in both directions.

Topics are found by pattern, as in those tests; each test has topics of its own.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab.cloud import Lab
from tests.support.mm2_stage import PARTITIONS, Pair, Side, servers

CONFIGURATION = r"""
clusters:
  primary: {bootstrap.servers: primary.example.com:9092, region: us-east-1}
  backup: {bootstrap.servers: backup.example.com:9092, region: eu-west-1}
defaults:
  topics: ['test-topic-.*', 'primary.test-topic-.*', 'backup.test-topic-.*']
  groups: ['consumer-group-.*']
  config.properties.exclude: ['delete\.retention\..*']
  mapping: {mode: on-demand, maximum.batching.window.seconds: 0}
flows:
  primary->backup:
    sync.group.offsets.enabled: true
  backup->primary:
    start: latest
"""

BEFORE = "test-topic-before-the-flow"
"""On `backup` with 100 records before the flows start; the flow from there starts with what comes after."""


@pytest.fixture(scope="package")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with servers(CONFIGURATION, tmp_path_factory.mktemp("mm2")) as lab:
        early = Side("backup", lab.clusters["backup"].bootstrap)
        early.create(BEFORE, PARTITIONS)
        early.produce(BEFORE)
        lab.start_flows()
        # What is there at a flow's first refresh begins where `start` says; the tests' own topics all come later.
        for alias, remote in (("primary", f"backup.{BEFORE}"), ("backup", "primary.heartbeats")):
            Side(alias, lab.clusters[alias].bootstrap).await_topic(remote)
        yield lab


@pytest.fixture
def pair(lab: Lab) -> Pair:
    """The clusters, as applications see them."""
    return Pair.of(lab)
