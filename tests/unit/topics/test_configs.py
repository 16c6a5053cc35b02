"""The configs of a remote topic: which are copied, and which a target takes when it is created."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest
from msgspec.structs import replace as changed

from mirrorless.clock import Deadline
from mirrorless.ports.topics import ConfigChange, ConfigEntry, NewRemoteTopic, TargetTopics
from mirrorless.scheduled.runner import RoundReport
from mirrorless.topics.configs import Creation, configs_to_copy, create_topics, drift, rewriting_configs
from mirrorless.topics.refresh import RemoteTopicSync
from tests.support.flows import make_control

NOTHING = ConfigChange()
LIMIT = "max.message.bytes"
SETTINGS = make_control("orders")


def own(name: str, value: str | None = "1", **more: bool) -> ConfigEntry:
    """Set on the topic."""
    return ConfigEntry(name=name, value=value, is_override=True, **more)


def default(name: str, value: str = "0") -> ConfigEntry:
    """The cluster's default."""
    return ConfigEntry(name=name, value=value, is_override=False)


SET = [own("a"), own("b", "2"), default("c")]


def test_what_was_set_on_the_source_topic_is_set_and_what_it_leaves_at_default_goes_back_to_the_targets() -> None:
    found = drift([own("a"), own("b"), own("c"), default("d"), default("e")], [*SET, own("d", "2"), default("e")])

    assert found.change == ConfigChange(set={"b": "1", "c": "1"}, delete=("d",))
    assert drift([], [own("new.in.5.0")]).change == NOTHING, "only the target has it"


@pytest.mark.parametrize("name", [LIMIT, "message.timestamp.before.max.ms"])
def test_a_limit_that_was_raised_on_the_target_is_never_lowered(name: str) -> None:
    """It is what the stop of a refused record advises."""
    for source in (own(name, "100"), own(name, "300"), default(name, "200")):
        assert drift([source], [own(name, "300")], exclude=()).change == NOTHING


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (own(LIMIT, "300"), own(LIMIT, "200")),
        (own(LIMIT, "300"), default(LIMIT, "400")),
        # Deleted, it would fall to the target's default, and what was refused would be refused again.
        (default(LIMIT, "300"), own(LIMIT, "200")),
    ],
)
def test_a_limit_below_the_sources_is_raised(source: ConfigEntry, target: ConfigEntry) -> None:
    assert drift([source], [target]).change == ConfigChange(set={LIMIT: "300"})


@pytest.mark.parametrize("options", [{"exclude": ["[ab]|max.*"]}, {"protect": ["[ab]", "max.*"]}], ids=str)
def test_excluded_and_protected_names_are_never_touched(options: Any) -> None:
    source, target = [own("a"), default("b"), own(LIMIT, "3")], [own("a", "2"), own("b", "2"), own(LIMIT, "2")]

    assert drift(source, target, **options).change == NOTHING
    assert drift([default("retention.ms")], [own("retention.ms")], protect=["retention"]).change, "a whole name matches"


def test_defaults_of_the_source_are_set_where_the_flow_says_so() -> None:
    found = drift([default("a", "-1"), default("b", "5")], [own("a", "2"), default("b", "5")], defaults_from="source")

    assert found.change == ConfigChange(set={"a": "-1", "b": "5"})


def test_what_cannot_be_read_or_written_is_left_alone() -> None:
    source = [own("secret", None, is_sensitive=True), own("fixed", "1", is_read_only=True)]
    target = [own("secret", None, is_sensitive=True), own("fixed", "2", is_read_only=True), own("secret2", "2")]

    assert drift([*source, own("secret2", None)], target).change == NOTHING


def test_a_config_unknown_to_the_target_is_reported_unless_it_is_a_default_and_stops_no_other() -> None:
    found = drift([own("a"), own("new.in.5.0"), default("new.in.5.1")], [default("a")], defaults_from="source")

    assert (found.change, found.unknown) == (ConfigChange(set={"a": "1"}), ("new.in.5.0",))


@pytest.mark.parametrize("exclude", [(), ("min.*",), (r"message\.downconversion\..*",)])
def test_a_list_of_ones_own_does_not_bring_the_type_of_times_back(exclude: tuple[str, ...]) -> None:
    source = [own("message.timestamp.type", "LogAppendTime"), own("a", "1")]

    assert configs_to_copy(source, exclude) == {"a": "1"}
    assert drift(source, [default("message.timestamp.type", "CreateTime"), own("a", "1")], exclude=exclude).change == (
        NOTHING
    )
    untouched = [own("message.timestamp.type", "CreateTime")]
    assert drift([default("message.timestamp.type")], untouched, exclude=exclude).change == NOTHING


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ([default("compression.type", "producer")], [default("compression.type", "producer")], []),
        ([], [own("message.timestamp.type", "LogAppendTime")], ["message.timestamp.type"]),
        ([], [default("message.timestamp.type", "LogAppendTime")], ["message.timestamp.type"]),  # the cluster's default
        ([own("message.timestamp.type", "LogAppendTime")], [default("message.timestamp.type", "CreateTime")], []),
        ([], [own("compression.type", "gzip")], ["compression.type"]),
        ([own("compression.type", "gzip")], [own("compression.type", "gzip")], []),
        ([own("compression.type", "gzip")], [own("compression.type", "uncompressed")], ["compression.type"]),
    ],
)
def test_what_a_remote_topic_rewrites_is_found_wherever_it_is_set(
    source: list[ConfigEntry], target: list[ConfigEntry], expected: list[str]
) -> None:
    assert list(rewriting_configs(source, target)) == expected


def test_a_new_topic_gets_what_the_operator_has_set_and_the_sources_defaults_where_the_flow_says_so() -> None:
    unreadable = own("secret", None, is_sensitive=True), own("fixed", is_read_only=True)
    similar = own("message.timestamp.type.of.another")
    excluded = own("message.timestamp.type"), own("min.insync.replicas"), default("min.insync.replicas")
    entries = [own("a"), default("b", "5"), similar, *unreadable, *excluded]

    assert configs_to_copy(entries) == {"a": "1", similar.name: "1"}
    assert configs_to_copy(entries, defaults_from="source") == {"a": "1", "b": "5", similar.name: "1"}


SERVERLESS = frozenset(
    [
        "cleanup.policy",
        "compression.type",
        "max.message.bytes",
        "message.timestamp.difference.max.ms",
        "message.timestamp.type",
        "retention.bytes",
        "retention.ms",
    ]
)
"""All that MSK Serverless takes. (https://docs.aws.amazon.com/msk/latest/developerguide/serverless-config.html)"""
EXPRESS = frozenset({"cleanup.policy", "compression.type", "max.message.bytes", "retention.ms", "segment.ms"})
"""Some of what MSK Express takes, which has `min.insync.replicas` and the replicas of its own.
(https://docs.aws.amazon.com/msk/latest/developerguide/msk-configuration-express-read-only.html)"""
THREE_OR_ITS_OWN = frozenset({3, -1})

REFUSED = {"redpanda.remote.write", "remote.storage.enable", "cleanup.policy=none"}


def seconds() -> float:
    """A deadline."""
    return 60.0


def topic(name: str, **configs: str) -> NewRemoteTopic:
    """A topic to create; underscores in config names are dots."""
    named = {key.replace("_", "."): value for key, value in configs.items()}
    return NewRemoteTopic(name=name, partitions=1, replication_factor=-1, configs=named)


@dataclass(slots=True)
class PickyTarget:
    """As much of `mirrorless.ports.topics.TargetTopics` as creates and alters topics."""

    calls: int = 0
    topics: dict[str, dict[str, str]] = field(default_factory=dict)
    forbidden: str = ""
    takes: frozenset[str] | None = None
    """The configs that may be set; None for all but `REFUSED`."""
    replicas: frozenset[int] | None = None
    """The replication factors that it takes; None for all."""

    def create(
        self, topics: Sequence[NewRemoteTopic], _: Deadline, *, validate_only: bool = False
    ) -> dict[str, str | None]:
        """See `TargetTopics.create`."""
        self.calls += 1
        errors = {each.name: self._error(each.name, dict(each.configs)) for each in topics}
        if self.replicas is not None:
            errors |= {each.name: "replicas" for each in topics if each.replication_factor not in self.replicas}
        if not validate_only:
            self.topics |= {each.name: dict(each.configs) for each in topics if not errors[each.name]}
        return errors

    def alter_configs(self, changes: dict[str, ConfigChange], _: Deadline) -> dict[str, str | None]:
        """See `TargetTopics.alter_configs`."""
        self.calls += 1
        errors = {name: self._error(name, dict(change.set)) for name, change in changes.items()}
        for name, change in changes.items():
            if not errors[name]:
                self.topics[name] |= change.set
        return errors

    def grow(self, counts: dict[str, int], _: Deadline) -> dict[str, str | None]:
        """See `TargetTopics.grow`."""
        return dict.fromkeys(counts)

    def partitions(self, _: Deadline) -> dict[str, int]:
        """See `TargetTopics.partitions`."""
        return dict.fromkeys(self.topics, 1)

    def configs(self, names: Any, _: Deadline) -> tuple[dict[str, list[ConfigEntry]], dict[str, str]]:
        """See `TargetTopics.configs`."""
        known = {"retention.ms", "segment.bytes", "remote.storage.enable", "max.message.bytes"}
        return {
            name: [
                ConfigEntry(name=each, value=self.topics[name].get(each, "0"), is_override=each in self.topics[name])
                for each in sorted(known | self.topics[name].keys())
            ]
            for name in names
        }, {}

    def _error(self, name: str, configs: dict[str, str]) -> str | None:
        if name == self.forbidden:
            return "not authorized"
        wrong = sorted(each for each in configs if each in REFUSED or f"{each}={configs[each]}" in REFUSED)
        wrong += sorted(configs.keys() - self.takes) if self.takes is not None else []
        return f"no {wrong[0]}" if wrong else None


def create(target: PickyTarget, *topics: NewRemoteTopic) -> dict[str, Creation]:
    """Create topics on it."""
    return create_topics(cast("TargetTopics", target), topics, seconds)


def test_topics_that_the_target_takes_are_created_by_one_call() -> None:
    target = PickyTarget()

    assert create(target, topic("a", retention_ms="1"), topic("b")) == {"a": Creation(), "b": Creation()}
    assert (target.calls, target.topics) == (1, {"a": {"retention.ms": "1"}, "b": {}})


def test_a_config_that_the_target_refuses_is_left_out_and_named() -> None:
    target = PickyTarget()
    refused = {"redpanda_remote_write": "true", "remote_storage_enable": "true"}
    others = {"retention_ms": "1", "segment_bytes": "2"}

    outcomes = create(target, topic("a", **refused, **others), topic("b", remote_storage_enable="true"), topic("c"))

    assert outcomes == {
        "a": Creation(None, ("redpanda.remote.write", "remote.storage.enable")),
        "b": Creation(None, ("remote.storage.enable",)),
        "c": Creation(),
    }
    assert target.topics == {"a": {"retention.ms": "1", "segment.bytes": "2"}, "b": {}, "c": {}}
    assert target.calls == 1 + 1 + 3 + 1


@pytest.mark.parametrize(
    ("takes", "left_out"),
    [
        (SERVERLESS, ("min.insync.replicas", "segment.bytes", "segment.ms", "unclean.leader.election.enable")),
        (EXPRESS, ("min.insync.replicas", "segment.bytes", "unclean.leader.election.enable")),
    ],
    ids=["serverless", "express"],
)
def test_a_service_that_sets_most_configs_itself_gets_the_others_and_the_rest_is_named(
    takes: frozenset[str], left_out: tuple[str, ...]
) -> None:
    target = PickyTarget(takes=takes, replicas=THREE_OR_ITS_OWN)
    configs = {
        "cleanup_policy": "compact",
        "compression_type": "zstd",
        "max_message_bytes": "2000000",
        "min_insync_replicas": "2",
        "retention_ms": "1",
        "segment_bytes": "2",
        "segment_ms": "3",
        "unclean_leader_election_enable": "false",
    }

    assert create(target, topic("a", **configs)) == {"a": Creation(None, left_out)}
    assert target.topics["a"].keys() == {name.replace("_", ".") for name in configs} - {*left_out}


def test_a_number_of_replicas_that_a_service_does_not_have_is_the_topics_error() -> None:
    target = PickyTarget(takes=SERVERLESS, replicas=THREE_OR_ITS_OWN)
    two = replace(topic("a", min_insync_replicas="2"), replication_factor=2)

    assert create(target, two, topic("b")) == {"a": Creation("replicas"), "b": Creation()}


def test_a_config_that_keeps_records_is_never_left_out() -> None:
    target = PickyTarget()

    outcomes = create(target, topic("a", cleanup_policy="none", segment_bytes="2"), topic("b", cleanup_policy="none"))

    assert {name: outcome.error for name, outcome in outcomes.items()} == {
        "a": "no cleanup.policy",
        "b": "no cleanup.policy",
    }
    assert target.topics == {}


def test_a_topic_that_is_refused_for_another_reason_keeps_its_error() -> None:
    target = PickyTarget(forbidden="a")

    assert create(target, topic("a", segment_bytes="1"), topic("b")) == {
        "a": Creation("not authorized"),
        "b": Creation(),
    }
    assert target.calls == 2


@dataclass(frozen=True, slots=True)
class OneTopic:
    """As much of `mirrorless.ports.topics.SourceTopics` as has the topic `orders`."""

    own: dict[str, str]

    def partitions(self, _: Deadline) -> dict[str, int]:
        """See `SourceTopics.partitions`."""
        return {"orders": 1}

    def configs(self, names: Any, _: Deadline) -> tuple[dict[str, list[ConfigEntry]], dict[str, str]]:
        """See `SourceTopics.configs`."""
        entries = [ConfigEntry(name=name, value=value, is_override=True) for name, value in self.own.items()]
        return dict.fromkeys(names, entries), {}


def test_what_was_left_out_at_creation_is_a_trouble_of_the_round() -> None:
    target = PickyTarget()
    sync = RemoteTopicSync(
        settings=SETTINGS,
        source=cast("Any", OneTopic({"redpanda.remote.write": "true", "segment.bytes": "2"})),
        target=cast("Any", target),
    )
    report = RoundReport()

    assert sync.create_and_grow({"orders": 1}, report, seconds) == {"orders": 1}
    assert report.counts["topics-created"] == 1
    assert report.troubles == ["us-east->eu-west orders: created without redpanda.remote.write: the target refuses it"]
    assert target.topics == {"us-east.orders": {"segment.bytes": "2"}}


@pytest.mark.parametrize("seconds_between", [600.0, None])
def test_a_remote_topic_that_rewrites_records_is_a_trouble_of_each_round_and_stays_as_it_is(
    seconds_between: float | None,
) -> None:
    """Also where configs are not synchronised; what the sync reverts itself is no trouble."""
    there = {"message.timestamp.type": "LogAppendTime", "compression.type": "gzip", "retention.ms": "2"}
    target = PickyTarget(topics={"us-east.orders": dict(there)})
    synced = seconds_between is not None
    settings = changed(SETTINGS, sync_topic_configs_enabled=synced, config_properties_exclude=("retention.bytes",))
    source = OneTopic({"message.timestamp.type": "LogAppendTime", "compression.type": "zstd", "retention.ms": "1"})
    sync = RemoteTopicSync(settings=settings, source=cast("Any", source), target=cast("Any", target))

    reports = [RoundReport(), RoundReport()]
    for report in reports:
        sync.sync_configs(report, seconds)

    off = seconds_between is None
    assert [report.counts["topics-rewriting"] for report in reports] == [1, 1]
    assert [[each.split()[2] for each in report.troubles] for report in reports] == [
        ["message.timestamp.type", "compression.type"] if off else ["message.timestamp.type"]
    ] * 2
    assert reports[0].counts["configs-altered"] == (0 if off else 2)
    assert target.topics == {
        "us-east.orders": there if off else there | {"compression.type": "zstd", "retention.ms": "1"}
    }


def test_a_drifted_config_that_the_target_refuses_stops_no_other() -> None:
    target = PickyTarget(topics={"us-east.orders": {}})
    own = {"remote.storage.enable": "true", "segment.bytes": "2", "retention.ms": "1", "redpanda.remote.write": "true"}
    sync = RemoteTopicSync(settings=SETTINGS, source=cast("Any", OneTopic(own)), target=cast("Any", target))
    report = RoundReport()

    sync.sync_configs(report, seconds)

    assert target.topics == {"us-east.orders": {"retention.ms": "1", "segment.bytes": "2"}}
    assert (report.counts["topics-altered"], report.counts["configs-altered"]) == (1, 2)
    unknown, refused = report.troubles
    assert unknown.endswith("the target has no config redpanda.remote.write")
    assert refused.endswith("delete=()): no remote.storage.enable")
