"""MM2's IdentityReplicationIntegrationTest, and its offset syncs on the target: one way, names as they are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mirrorless.mm2.internal_records import OffsetSync
from tests.support.mm2_stage import (
    PARTITIONS,
    PER_PARTITION,
    Pair,
    assert_monotonic,
    await_mirrored,
    fresh,
    servers,
)
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration

CONFIGURATION = r"""
clusters:
  primary: {bootstrap.servers: primary.example.com:9092, region: us-east-1}
  backup: {bootstrap.servers: backup.example.com:9092, region: eu-west-1}
flows:
  primary->backup:
    topics: ['test-topic-.*']
    groups: ['consumer-group-.*']
    replication.policy: identity
    use.defaults.from: source
    config.properties.exclude: ['delete\.retention\..*']
    emit.offset-syncs.enabled: true
    sync.group.offsets.enabled: true
    sync.group.offsets.reverse.enabled: true
    mapping: {mode: on-demand, maximum.batching.window.seconds: 0}
"""


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with servers(CONFIGURATION, tmp_path_factory.mktemp("identity")) as lab:
        lab.start_flows()
        yield Pair.of(lab)


@pytest.mark.soak(
    "tests/integration/test_checkpoints.py::test_a_group_goes_there_and_back_three_times",
    "tests/integration/test_active_active.py::test_producers_on_both_sides_and_a_group_that_moves_have_every_record_once",
)
def test_a_topic_keeps_its_name_and_a_group_its_place_there_and_back_again(identity: Pair) -> None:
    topic, group = fresh("test-topic"), fresh("consumer-group")
    identity.primary.create(topic)
    identity.primary.produce(topic)
    assert len(identity.primary.consume(group, [topic])) == PARTITIONS * PER_PARTITION
    await_mirrored(identity.primary, topic, identity.backup, topic)

    identity.backup.await_at_ends(group, topic)
    assert identity.backup.consume(group, [topic]) == []
    assert_monotonic(identity.backup.checkpoints("primary"), group)

    # What the group reads on backup it need not read on primary again.
    identity.primary.produce(topic)
    await_mirrored(identity.primary, topic, identity.backup, topic)
    assert len(identity.backup.consume(group, [topic])) == PARTITIONS * PER_PARTITION
    ends = identity.primary.ends(topic)
    eventually(lambda: identity.primary.committed(group, topic) == ends, "the group's offsets are back on primary")
    assert identity.primary.consume(group, [topic]) == []
    identity.primary.await_checkpoints("backup", group, ends)


@pytest.mark.soak(
    "tests/unit/flow/test_policy.py::test_identity_keeps_every_name_but_those_of_heartbeats",
    "tests/integration/test_checkpoints.py::test_heartbeats_stand_on_both_sides",
)
def test_heartbeats_are_prefixed_all_the_same(identity: Pair) -> None:
    eventually(lambda: identity.backup.count("primary.heartbeats") > 0, "primary.heartbeats beats on backup")
    assert identity.backup.count("heartbeats") > 0


@pytest.mark.soak("tests/integration/test_checkpoints.py::test_offset_syncs_name_the_last_record_of_each_lane_once")
def test_offset_syncs_are_on_the_target_and_name_true_places(identity: Pair) -> None:
    topic = fresh("test-topic")
    identity.primary.create(topic, 1)
    identity.primary.produce(topic)
    await_mirrored(identity.primary, topic, identity.backup, topic)
    last = (identity.primary.records(topic)[0][-1].offset, identity.backup.records(topic)[0][-1].offset)

    def newest() -> tuple[int, int] | None:
        there = [
            OffsetSync.decode(seen.content.key or b"", seen.content.value or b"")
            for seen in identity.backup.records("mm2-offset-syncs.primary.internal")[0]
        ]
        return next(((each.upstream, each.downstream) for each in reversed(there) if each.topic == topic), None)

    eventually(lambda: newest() == last, "an offset sync of the last record")
    assert not [name for name in identity.primary.topics() if name.startswith("mm2-offset-syncs")]


@pytest.mark.soak(
    "tests/integration/test_refresh_topics.py::test_defaults_of_the_source_are_set_on_the_target_where_the_flow_says_so"
)
def test_a_config_that_the_source_leaves_alone_takes_the_sources_default(identity: Pair) -> None:
    topic = identity.primary.create(fresh("test-topic"), 1)
    identity.backup.await_topic(topic)
    identity.backup.set_config(topic, "retention.bytes", "1000")
    identity.backup.set_config(topic, "delete.retention.ms", "2000")
    eventually(lambda: identity.backup.overrides(topic).get("retention.bytes") == "-1", "the source's default is set")
    assert identity.backup.overrides(topic)["delete.retention.ms"] == "2000"
