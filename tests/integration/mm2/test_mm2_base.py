"""MM2's MirrorConnectorsIntegrationBaseTest, against our flows.

docs/reference/mm2-scenarios.md has the others of its scenarios.
"""

from __future__ import annotations

from functools import partial

import pytest

from tests.integration.mm2.conftest import BEFORE
from tests.support.mm2_stage import (
    PARTITIONS,
    PER_PARTITION,
    Pair,
    assert_monotonic,
    await_mirrored,
    fresh,
    true_place,
    values,
)
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.integration,
    pytest.mark.soak(
        "tests/integration/test_lab_up.py::test_what_is_produced_on_one_side_appears_on_the_other_exactly_once",
        "tests/integration/test_lab_up.py::test_heartbeats_reach_the_other_side_and_come_back_through_the_flow",
        "tests/integration/test_lab_up.py::test_a_topic_that_a_pattern_finds_is_mapped_and_its_records_flow",
        "tests/integration/test_refresh_topics.py::test_a_topic_found_late_gets_its_remote_topic_and_a_mapping_from_its_first_record",
        "tests/integration/test_refresh_topics.py::test_configs_follow_the_source_and_a_manual_override_is_reverted",
        "tests/integration/test_refresh_topics.py::test_topics_that_were_there_before_the_flow_begin_at_their_end_and_later_ones_at_their_first_record",
        "tests/integration/test_lane_hazards.py::test_a_partition_that_the_target_lacks_is_added_before_a_record_needs_it",
        "tests/integration/test_checkpoints.py::test_a_group_goes_there_and_back_three_times",
        "tests/integration/test_checkpoints.py::test_an_empty_partition_and_one_without_readers_do_no_harm",
        "tests/integration/test_mirror_client.py::test_a_group_is_sent_to_the_very_record_on_the_target_and_on_the_source_again",
        "tests/integration/test_translation_oracle.py::test_no_offset_is_placed_wrongly_by_a_single_record_in_either_direction",
        "tests/unit/groups/test_round.py::test_groups_and_topics_out_of_scope_are_ignored",
        "tests/unit/groups/test_round.py::test_an_operators_rewind_on_the_target_is_not_undone",
        "tests/unit/cli/test_status.py::test_tasks_that_are_switched_off_are_not_expected",
    ),
]

RECORDS = PARTITIONS * PER_PARTITION


def test_records_of_either_side_are_read_on_both(pair: Pair) -> None:
    topic = fresh("test-topic")
    for side in (pair.primary, pair.backup):
        side.create(topic)
        assert side.produce(topic) == RECORDS

    await_mirrored(pair.primary, topic, pair.backup, f"primary.{topic}")
    await_mirrored(pair.backup, topic, pair.primary, f"backup.{topic}")

    group = fresh("consumer-group")
    for side, other in ((pair.primary, "backup"), (pair.backup, "primary")):
        assert len(side.consume(group, [topic, f"{other}.{topic}"])) == 2 * RECORDS
    assert f"primary.backup.{topic}" not in pair.backup.topics()
    assert f"backup.primary.{topic}" not in pair.primary.topics()


def test_a_remote_topic_has_the_sources_configs_but_those_that_are_excluded(pair: Pair) -> None:
    compacted, configured = fresh("test-topic"), fresh("test-topic-with-config")
    pair.primary.create(compacted, cleanup_policy="compact")
    pair.primary.create(configured, delete_retention_ms="1000", retention_bytes="1000")

    for topic in (compacted, configured):
        pair.backup.await_topic(f"primary.{topic}")
    assert pair.backup.overrides(f"primary.{compacted}") == {"cleanup.policy": "compact"}
    assert pair.backup.overrides(f"primary.{configured}") == {"retention.bytes": "1000"}


def test_heartbeats_go_both_ways(pair: Pair) -> None:
    for side, other in ((pair.primary, "backup"), (pair.backup, "primary")):
        for topic in ("heartbeats", f"{other}.heartbeats"):
            eventually(partial(side.count, topic), f"{topic} on {side.alias} beats")


def test_a_group_that_fails_over_goes_on_where_it_was_and_returns_the_same_way(pair: Pair) -> None:
    topic, group = fresh("test-topic"), fresh("consumer-group")
    pair.primary.create(topic)
    pair.primary.produce(topic)
    assert len(pair.primary.consume(group, [topic])) == RECORDS
    await_mirrored(pair.primary, topic, pair.backup, f"primary.{topic}")

    remote = {(f"primary.{topic}", partition) for partition in range(PARTITIONS)}
    eventually(lambda: pair.backup.checkpointed("primary", group).keys() >= remote, "each partition has a checkpoint")
    pair.backup.await_at_ends(group, f"primary.{topic}")
    assert pair.backup.consume(group, [f"primary.{topic}"]) == []
    assert_monotonic(pair.backup.checkpoints("primary"), group)

    pair.primary.produce(topic)
    await_mirrored(pair.primary, topic, pair.backup, f"primary.{topic}")
    assert len(pair.backup.consume(group, [f"primary.{topic}"])) == RECORDS


def test_topics_made_later_are_found_and_all_their_records_arrive(pair: Pair) -> None:
    forth, back = fresh("test-topic"), fresh("test-topic")
    pair.primary.create(forth)
    pair.primary.produce(forth, partitions=[0, 1])
    pair.backup.create(back, 2)
    pair.backup.produce(back)

    await_mirrored(pair.primary, forth, pair.backup, f"primary.{forth}")
    # This flow starts at the latest record: what was there before the flow stays behind, what is found later does not.
    await_mirrored(pair.backup, back, pair.primary, f"backup.{back}")
    assert pair.backup.partitions(f"primary.{forth}") == PARTITIONS


def test_a_group_on_a_topic_with_an_empty_partition_gets_an_offset_for_it(pair: Pair) -> None:
    topic, group = fresh("test-topic"), fresh("consumer-group")
    pair.primary.create(topic, 3)
    pair.primary.produce(topic, partitions=[0, 1])
    assert len(pair.primary.consume(group, [topic])) == 2 * PER_PARTITION
    await_mirrored(pair.primary, topic, pair.backup, f"primary.{topic}")

    pair.backup.consume(group, [f"primary.{topic}"])
    assert pair.backup.committed(group, f"primary.{topic}")[f"primary.{topic}", 2] == 0


def test_group_offsets_are_exact_for_one_topic_and_for_a_topic_made_later(pair: Pair) -> None:
    group = fresh("consumer-group")
    for _ in range(2):
        topic = fresh("test-topic")
        pair.primary.create(topic)
        pair.primary.produce(topic)
        pair.primary.consume(group, [topic])
        await_mirrored(pair.primary, topic, pair.backup, f"primary.{topic}")

        pair.backup.await_at_ends(group, f"primary.{topic}")
        assert pair.backup.consume(group, [f"primary.{topic}"]) == []
    assert_monotonic(pair.backup.checkpoints("primary"), group)


def test_no_offset_syncs_topic_is_made_on_either_side(pair: Pair) -> None:
    topic = fresh("test-topic")
    pair.primary.create(topic)
    pair.primary.produce(topic)
    await_mirrored(pair.primary, topic, pair.backup, f"primary.{topic}")
    for side in (pair.primary, pair.backup):
        assert not [name for name in side.topics() if name.startswith("mm2-offset-syncs")]


def test_nothing_is_checkpointed_of_a_topic_of_which_nothing_is_replicated(pair: Pair) -> None:
    group, replicated, excluded = fresh("consumer-group"), fresh("test-topic"), fresh("other-topic")
    for topic in (replicated, excluded):
        pair.primary.create(topic, 2)
        pair.primary.produce(topic)
    pair.primary.consume(group, [replicated, excluded])
    eventually(
        lambda: (
            pair.backup.checkpointed("primary", group).keys()
            == {(f"primary.{replicated}", 0), (f"primary.{replicated}", 1)}
        ),
        "checkpoints of the replicated topic",
    )
    assert f"primary.{excluded}" not in pair.backup.topics()


def test_a_group_behind_the_flow_is_translated_exactly_and_may_be_moved_back(pair: Pair) -> None:
    topic, group = fresh("test-topic"), fresh("consumer-group")
    pair.primary.create(topic, 2)
    pair.primary.produce(topic, 100)
    await_mirrored(pair.primary, topic, pair.backup, f"primary.{topic}")

    for part in (0.9, 0.1):
        upstream = {(topic, p): each[int(len(each) * part)].offset for p, each in pair.primary.records(topic).items()}
        pair.primary.commit(group, upstream)
        expected = {(f"primary.{topic}", p): true_place(pair, topic, p, offset) for (_, p), offset in upstream.items()}
        pair.backup.await_checkpoints("primary", group, expected)
    # The group's own offsets on the target never go back: somebody may have read there meanwhile.
    upstream_at_90 = {p: int(len(each) * 0.9) for p, each in pair.backup.records(f"primary.{topic}").items()}
    for partition, index in upstream_at_90.items():
        place = pair.backup.records(f"primary.{topic}")[partition][index].offset
        assert pair.backup.committed(group, f"primary.{topic}")[f"primary.{topic}", partition] == place


def test_a_config_changed_on_the_source_follows_and_one_changed_on_the_target_is_put_right(pair: Pair) -> None:
    topic = pair.primary.create(fresh("test-topic"), 1, retention_bytes="1000", delete_retention_ms="1000")
    remote = f"primary.{topic}"
    pair.backup.await_topic(remote)

    pair.backup.set_config(remote, "retention.bytes", "2000")
    pair.backup.set_config(remote, "delete.retention.ms", "2000")
    eventually(lambda: pair.backup.overrides(remote).get("retention.bytes") == "1000", "the source's value is back")
    assert pair.backup.overrides(remote)["delete.retention.ms"] == "2000"

    pair.primary.set_config(topic, "retention.bytes", "3000")
    eventually(lambda: pair.backup.overrides(remote).get("retention.bytes") == "3000", "the new value arrives")
    pair.primary.set_config(topic, "retention.bytes", None)
    eventually(lambda: "retention.bytes" not in pair.backup.overrides(remote), "the target's own default is back")


def test_a_flow_that_starts_at_the_latest_record_copies_what_comes_after_it_and_nothing_else(pair: Pair) -> None:
    remote = f"backup.{BEFORE}"
    pair.primary.await_topic(remote)
    old = values(pair.backup, BEFORE)
    pair.backup.produce(BEFORE)
    new = values(pair.backup, BEFORE) - old
    eventually(lambda: pair.primary.count(remote) >= sum(new.values()), "the new records are there")
    assert values(pair.primary, remote) == new


def test_partitions_added_to_a_source_topic_are_added_to_the_remote_one_and_none_of_their_records_is_lost(
    pair: Pair,
) -> None:
    ways = [
        (source, source.create(fresh("test-topic"), 2), target)
        for source, target in ((pair.primary, pair.backup), (pair.backup, pair.primary))
    ]
    for source, topic, _ in ways:
        source.produce(topic)
    for source, topic, target in ways:
        await_mirrored(source, topic, target, f"{source.alias}.{topic}")
        source.grow(topic, 4)
        source.produce(topic, partitions=[2, 3])
    for source, topic, target in ways:
        await_mirrored(source, topic, target, f"{source.alias}.{topic}")


def test_functions_that_are_thrown_away_leave_offsets_exact_and_checkpoints_monotonic(pair: Pair) -> None:
    """The last one: a killed run's lease keeps the next ones waiting for up to a minute and a half."""
    topic, group = fresh("test-topic"), fresh("consumer-group")
    pair.primary.create(topic)
    for _ in range(2):
        pair.primary.produce(topic)
        pair.primary.consume(group, [topic])
        await_mirrored(pair.primary, topic, pair.backup, f"primary.{topic}")
        pair.backup.await_checkpoints("primary", group, pair.backup.ends(f"primary.{topic}"))
        for function in pair.lab.functions.values():
            for environment in function.environments:
                environment.kill()
    assert_monotonic(pair.backup.checkpoints("primary"), group)
