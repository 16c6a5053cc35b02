"""Rights on MSK: exactly what the adapters' calls need, on exactly the flow's names."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from infra.deployment import FlowDeployment, plan
from infra.iam import Part, Right
from infra.iam.calls import BROKER_CONFIGS, IDEMPOTENT_PRODUCER, KIND, NEEDS, POLLERS
from infra.iam.kafka_names import distinct, prefixes
from infra.iam.statements import kafka_rights
from mirrorless.config import load
from mirrorless.flow.naming import GAPS_GROUP, JOB_GROUP
from tests.support.assembly import EXAMPLES, REPOSITORY
from tests.support.yaml_text import dump_yaml, load_yaml

ADAPTERS = REPOSITORY / "shared" / "mirrorless" / "adapters"
OURS = {("KafkaGroups", "self._groups", "committed"), ("RawWriter", "self._raw", "commit")}
"""Methods of ours that are called like one of the client's: what their module says of the receiver, and that."""

SOURCE = "arn:aws:kafka:us-east-1:111122223333"
TARGET = "arn:aws:kafka:us-west-2:111122223333"
SOURCE_PATH = "us-east/6cc0432b-8618-4f44-bccc-e1fbd8fb7c4d-2"
TARGET_PATH = "us-west/0b5c7e5a-9a0e-4f0c-8d4e-5c6f2f3f7a10-3"

PARTS: list[Part] = ["forward", "pull", "control", "refresh_topics", "jobs"]

Flowing = Callable[..., FlowDeployment]


@pytest.fixture
def flowing() -> Flowing:
    """The flow of the active-passive example, with other keys; `us_east` and `us_west` change its clusters."""

    def of(
        *, us_east: dict[str, Any] | None = None, us_west: dict[str, Any] | None = None, **keys: Any
    ) -> FlowDeployment:
        document = load_yaml(EXAMPLES["active-passive"].read_text())
        document["clusters"]["us-east"] |= us_east or {}
        document["clusters"]["us-west"] |= us_west or {}
        document["flows"]["us-east->us-west"] |= {key.replace("_", "."): value for key, value in keys.items()}
        for cluster in document["clusters"].values():
            if cluster["msk.cluster.arn"] is None:
                del cluster["msk.cluster.arn"]
        return plan(load(dump_yaml(document))).flows[0]

    return of


def resources(granted: list[Right], action: str) -> set[str]:
    return {arn for right in granted if f"kafka-cluster:{action}" in right.actions for arn in right.resources}


def may(granted: list[Right], action: str, arn: str) -> bool:
    return any(fnmatchcase(arn, pattern) for pattern in resources(granted, action))


# The table


def used(module: Path) -> Iterator[str]:
    """The names of every method of a client, and every client, that a module uses."""
    text = module.read_text()
    methods = {name for client in (AdminClient, Consumer, Producer) for name in dir(client) if not name.startswith("_")}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in {"AdminClient", "Consumer", "Producer"}:
                yield node.func.id
        elif isinstance(node, ast.Attribute) and node.attr in methods:
            receiver = ast.unparse(node.value)
            if not any(ours in text and (receiver, node.attr) == (of, name) for ours, of, name in OURS):
                yield BROKER_CONFIGS if node.attr == "describe_configs" and "ResourceType.BROKER" in text else node.attr
    if '"enable.idempotence"' in text:
        yield IDEMPOTENT_PRODUCER


def test_every_call_of_the_adapters_has_a_row_and_every_row_is_a_call() -> None:
    assert {call for module in ADAPTERS.glob("kafka/*.py") for call in used(module)} == NEEDS.keys() - {POLLERS}


def test_the_table_has_the_actions_that_iam_has_and_the_resources_they_take() -> None:
    """cfn-lint ships what the Service Authorization Reference says."""
    shipped = files("cfnlint.data.AdditionalSpecs").joinpath("Policies.json").read_text()
    actions = json.loads(shipped)["kafka-cluster"]["Actions"]

    assert {action for needed in NEEDS.values() for action in needed} == KIND.keys()
    for action, kind in KIND.items():
        assert actions[action.lower()]["Resources"] == [kind]


def test_our_consumers_are_called_what_the_rights_say() -> None:
    found = {
        name for module in ADAPTERS.glob("kafka/*.py") for name in re.findall(r"\b([A-Z]+_GROUP)\b", module.read_text())
    }

    assert found == {"LOOK_GROUP", "GAPS_GROUP", "JOB_GROUP", "PULL_GROUP"}
    wired = (REPOSITORY / "functions" / "control.py").read_text()
    assert set(re.findall(r"KafkaSourceLog\(.*group=(\w+)", wired)) == {"LOOK_GROUP"}, (
        "as the look at the target has it"
    )


# Both ways: what a function can call, and what its role may


@cache
def imported(module: Path) -> frozenset[Path]:
    """The Kafka adapters that a file imports, itself or by the replicator's wiring, and those that they do."""
    found: set[Path] = set()
    for name in re.findall(r"from mirrorless\.adapters\.(kafka\.\w+|replicator) import", module.read_text()):
        path = ADAPTERS / f"{name.replace('.', '/')}.py"
        found |= {path} | imported(path)
    return frozenset(found)


UNREACHED: dict[Part, set[str]] = {
    "forward": {"WriteDataIdempotently", "AlterTopicDynamicConfiguration"},  # transactions; it only reads an entry
    # It adds no partitions, and only reads an entry; drills delete groups.
    "control": {"AlterTopic", "AlterTopicDynamicConfiguration", "DeleteGroup"},
    "refresh_topics": {"DeleteGroup"},
    "pull": {"WriteDataIdempotently", "AlterTopicDynamicConfiguration", "DeleteGroup"},  # as the forwarder
}
"""Needed by calls of the imported adapters which this function does not get to."""


@pytest.mark.parametrize("part", UNREACHED)
def test_a_role_may_what_its_function_calls_and_nothing_else(part: Part, flowing: Flowing) -> None:
    everything = flowing(**{"emit.offset-syncs.enabled": True}, start="latest", oversize="stop")
    modules = imported(REPOSITORY / "functions" / f"{part}.py")
    calls = {call for module in modules for call in used(module)} | ({POLLERS} if part == "forward" else set())
    needed = {action for call in calls for action in NEEDS[call]}

    granted = {
        action.removeprefix("kafka-cluster:") for right in kafka_rights(part, everything) for action in right.actions
    }

    assert granted == needed - UNREACHED[part]


REQUIRED = {
    "DescribeCluster": {"Connect"},
    "AlterCluster": {"Connect", "DescribeCluster"},
    "DescribeClusterDynamicConfiguration": {"Connect"},
    "WriteDataIdempotently": {"Connect", "WriteData"},
    "CreateTopic": {"Connect"},
    "DescribeTopic": {"Connect"},
    "AlterTopic": {"Connect", "DescribeTopic"},
    "DescribeTopicDynamicConfiguration": {"Connect"},
    "AlterTopicDynamicConfiguration": {"Connect", "DescribeTopicDynamicConfiguration"},
    "ReadData": {"Connect", "DescribeTopic", "AlterGroup"},
    "WriteData": {"Connect", "DescribeTopic"},
    "DescribeGroup": {"Connect"},
    "AlterGroup": {"Connect", "DescribeGroup"},
    "DescribeTransactionalId": {"Connect"},
    "AlterTransactionalId": {"Connect", "DescribeTransactionalId", "WriteData"},
}
"""https://docs.aws.amazon.com/msk/latest/developerguide/kafka-actions.html, column "Required actions"."""


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("cluster", [f"/{SOURCE_PATH}", f"/{TARGET_PATH}"])
def test_what_an_action_requires_is_granted_on_the_same_cluster(part: Part, cluster: str, flowing: Flowing) -> None:
    granted = {
        action.removeprefix("kafka-cluster:")
        for right in kafka_rights(
            part, flowing(start="latest", trigger_overrides={"payments": "schedule"}, oversize="stop")
        )
        if any(cluster in arn for arn in right.resources)
        for action in right.actions
    }

    assert granted
    assert {action: REQUIRED[action] - granted for action in granted - {"Connect"} if REQUIRED[action] - granted} == {}


# Names

PREFIX = "mirrorless.us-east.us-west."
NAMELESS = {"msk.cluster.arn": None, "region": "us-west-2", "account": "111122223333"}
CONNECTED = {
    "msk.cluster.arn": "arn:aws:kafka:us-west-2:111122223333:vpc-connection/999988887777/vault/0f0e0d0c-1b2a-1",
    "bootstrap.servers": ["b-1.uswest.example.com:14001"],
}
SERVERLESS_PATH = "us-west/0b5c7e5a-9a0e-4f0c-8d4e-5c6f2f3f7a10-s1"
SERVERLESS = {"msk.cluster.arn": f"{TARGET}:cluster/{SERVERLESS_PATH}"}
TOPICS = ("orders*", "payments")
BEATS = ("heartbeats", "*.heartbeats")


def source(kind: str, *names: str) -> set[str]:
    return {f"{SOURCE}:{kind}/{SOURCE_PATH}/{name}" for name in names}


def target(kind: str, *names: str) -> set[str]:
    return {f"{TARGET}:{kind}/{TARGET_PATH}/{name}" for name in names}


EXACTLY: dict[str, tuple[Part, dict[str, Any], str, set[str]]] = {
    "the forwarder writes the remote topics": (
        *("forward", {}, "WriteData"),
        target("topic", *(f"us-east.{name}" for name in (*TOPICS, *BEATS))),
    ),
    "by what names of topics have for the source": (
        *("forward", {"us_east": {"topic.prefix": "A"}}, "WriteData"),
        target("topic", *(f"A.{name}" for name in (*TOPICS, *BEATS))),
    ),
    "topics that keep their names are granted by these names": (
        *("forward", {"replication_policy": "identity", "heartbeats_replication_enabled": False}, "WriteData"),
        target("topic", *TOPICS),
    ),
    "transactional ids are of this flow only": (
        *("forward", {}, "AlterTransactionalId"),
        target("transactional-id", f"{PREFIX}*"),
    ),
    "a producer without transactions is idempotent": (
        *("forward", {"delivery": "at_least_once"}, "WriteDataIdempotently"),
        {f"{TARGET}:cluster/{TARGET_PATH}"},
    ),
    "internal topics are named one by one": (
        *("control", {"emit.offset-syncs.enabled": True}, "CreateTopic"),
        target("topic", "heartbeats", "us-east.checkpoints.internal", "mm2-offset-syncs.us-east.internal")
        | source("topic", "heartbeats", "us-west.checkpoints.internal"),
    ),
    "ACLs are altered on the target alone": (
        *("refresh_topics", {}, "AlterCluster"),
        {f"{TARGET}:cluster/{TARGET_PATH}"},
    ),
    "and only where they are synchronised": (
        *("refresh_topics", {"sync_topic_acls_enabled": False}, "AlterCluster"),
        set(),
    ),
    "configs are altered only where they are synchronised": (
        *("refresh_topics", {"sync_topic_configs_enabled": False}, "AlterTopicDynamicConfiguration"),
        set(),
    ),
    "a serverless cluster has no ACLs": ("refresh_topics", {"us_west": SERVERLESS}, "AlterCluster", set()),
}
"""By what they say: a part, keys of its flow, an action, and all that it is granted on."""


@pytest.mark.parametrize(("part", "keys", "action", "expected"), EXACTLY.values(), ids=EXACTLY)
def test_an_action_is_granted_on_these_names_and_no_others(
    part: Part, keys: dict[str, Any], action: str, expected: set[str], flowing: Flowing
) -> None:
    assert resources(kafka_rights(part, flowing(**keys)), action) == expected


Keyed = tuple[Part, dict[str, Any]]
JOBS: Keyed = ("jobs", {})
MOVING: Keyed = ("control", {"groups": ["shop", "billing-.*"]})
STILL: Keyed = ("control", {"sync_group_offsets_reverse_enabled": False, "sync_group_offsets_enabled": False})
STOPPING, LEAVING = ({"groups": ["shop"], "oversize": value} for value in ("stop", "ledger"))
OTHER = "mirrorless.us-east.hub.1"
BOTH_WAYS = {f"mirrorless.{flow}.1" for flow in ("us-east.us-west", "us-west.us-east")}
Granted = tuple[Part, dict[str, Any], str, set[str]]
VAULT = "arn:aws:kafka:us-west-2:999988887777"
GRANTED: list[Granted] = [
    ("forward", STOPPING, "AlterGroup", source("group", "mirrorless-gaps")),
    ("control", STOPPING, "DescribeGroup", source("group", f"{PREFIX}orders")),
    (*MOVING, "AlterGroup", target("group", "shop") | source("group", "billing-eu")),
    ("refresh_topics", {}, "AlterTopicDynamicConfiguration", target("topic", "us-east.payments")),
    # What an earlier deployment left is settled without transactions too.
    ("forward", {"delivery": "at_least_once"}, "AlterTransactionalId", target("transactional-id", f"{PREFIX}1")),
    (*JOBS, "CreateTopic", source("topic", "payments.orphans")),
    ("jobs", {"groups": ["shop"]}, "AlterGroup", source("group", JOB_GROUP) | target("group", JOB_GROUP)),
    # They bring back by the flow turned around.
    (*JOBS, "AlterTransactionalId", source("transactional-id", *BOTH_WAYS) | target("transactional-id", *BOTH_WAYS)),
    ("jobs", {"reconcile_enabled": False}, "ReadData", source("topic", "payments")),
    ("jobs", {"reconcile_enabled": False}, "WriteData", target("topic", "us-east.payments")),
    # A VPC connection stands for the cluster that it leads to; one without an ARN is granted by topic all the same.
    ("forward", {"us_west": CONNECTED}, "Connect", {f"{VAULT}:cluster/vault/*"}),
    ("forward", {"us_west": CONNECTED}, "WriteData", {f"{VAULT}:topic/vault/*/us-east.payments"}),
    ("forward", {"us_west": NAMELESS}, "Connect", {f"{TARGET}:cluster/*/*"}),
    ("forward", {"us_west": NAMELESS}, "WriteData", {f"{TARGET}:topic/*/*/us-east.payments"}),
    ("refresh_topics", {"us_west": SERVERLESS}, "CreateTopic", {f"{TARGET}:topic/{SERVERLESS_PATH}/us-east.payments"}),
]
DENIED: list[Granted] = [
    ("forward", LEAVING, "AlterGroup", source("group", "mirrorless-gaps")),
    ("control", STOPPING, "WriteData", target("topic", "us-east.orders")),
    ("control", LEAVING, "DescribeGroup", source("group", f"{PREFIX}orders")),
    ("control", STOPPING, "AlterGroup", source("group", f"{PREFIX}orders")),
    ("control", LEAVING, "AlterGroup", source("group", f"{PREFIX}orders")),
    (*STILL, "AlterGroup", target("group", "shop")),
    (*MOVING, "AlterGroup", target("group", "shopping")),
    ("refresh_topics", {}, "AlterTopicDynamicConfiguration", source("topic", "payments")),
    (*JOBS, "WriteData", source("topic", "heartbeats")),
    (*JOBS, "CreateTopic", source("topic", "payments")),
    (*JOBS, "AlterTransactionalId", {*source("transactional-id", OTHER), *target("transactional-id", OTHER)}),
]
"""A part, keys of its flow, an action, and names on which it is granted, or is not."""


@pytest.mark.parametrize(
    ("expected", "part", "keys", "action", "names"),
    [(expected, *row) for expected, rows in ((True, GRANTED), (False, DENIED)) for row in rows],
)
def test_an_action_is_granted_where_the_flow_needs_it(
    *, expected: bool, part: Part, keys: dict[str, Any], action: str, names: set[str], flowing: Flowing
) -> None:
    granted = kafka_rights(part, flowing(**keys))

    assert {name for name in names if may(granted, action, name)} == (names if expected else set())


def test_the_forwarder_reads_the_flows_topics_by_the_groups_of_its_mappings(flowing: Flowing) -> None:
    granted = kafka_rights("forward", flowing())

    def of_source(action: str) -> set[str]:
        return {arn for arn in resources(granted, action) if arn.startswith(SOURCE)}

    assert of_source("ReadData") == source("topic", *TOPICS, *BEATS)
    assert of_source("AlterGroup") == source("group", f"{PREFIX}*")


def test_nothing_more_may_be_read_where_every_topic_is_scheduled(flowing: Flowing) -> None:
    scheduled = flowing(trigger="schedule", oversize="stop")

    assert kafka_rights("forward", scheduled) == kafka_rights("forward", flowing(trigger="schedule"))
    assert not scheduled.flow.stops_at_oversize


def test_nothing_is_written_to_the_source_unless_the_configuration_has_it(flowing: Flowing) -> None:
    off = ("sync_group_offsets_reverse_enabled", "emit_heartbeats_source_enabled", "reconcile_enabled")
    quiet = flowing(**dict.fromkeys(off, False))

    for part in ("forward", "control", "refresh_topics", "jobs"):
        for action in ("WriteData", "CreateTopic", "AlterTopic", "AlterTransactionalId", "WriteDataIdempotently"):
            assert not [arn for arn in resources(kafka_rights(part, quiet), action) if arn.startswith(SOURCE)]


def test_who_carries_groups_between_the_same_names_reads_the_targets_log_as_the_sources(flowing: Flowing) -> None:
    alone = flowing(replication_policy="identity", groups=["shop"])
    pair = replace(alone, flow=replace(alone.flow, origins=("us-east", "us-west"), has_counterpart=True))
    (reader,), (log,) = target("group", GAPS_GROUP), target("topic", "payments")

    assert not may(kafka_rights("control", alone), "DescribeGroup", reader)
    assert may(kafka_rights("control", pair), "DescribeGroup", reader)
    assert may(kafka_rights("control", pair), "ReadData", log)


def test_a_cluster_with_a_secret_needs_no_right_of_this_kind(flowing: Flowing) -> None:
    key = "arn:aws:kms:us-west-2:111122223333:key/1"
    proof = {"type": "scram", "secret": "AmazonMSK_x", "secret.kms.key.arn": key}

    granted = kafka_rights(
        "forward",
        flowing(us_west={**NAMELESS, "bootstrap.servers": ["b-1.uswest.example.com:9096"], "authentication": proof}),
    )

    assert granted
    assert all(arn.startswith(SOURCE) for right in granted for arn in right.resources)


UNLIKE = tuple(f"{number * 7919 % 1000:03}-of-team-{number % 7}" for number in range(200))


@pytest.mark.parametrize("part", PARTS)
def test_two_hundred_unlike_topics_are_granted_one_by_one(part: Part, flowing: Flowing) -> None:
    few = flowing(heartbeats_replication_enabled=False, groups=["app"])
    settings = few.flow.settings.model_copy(update={"topics": UNLIKE})

    granted = kafka_rights(part, replace(few, flow=replace(few.flow, settings=settings)))

    for topic in UNLIKE:
        assert may(granted, "DescribeTopic", f"{TARGET}:topic/{TARGET_PATH}/us-east.{topic}")
    assert not [arn for right in granted for arn in right.resources if ":topic/" in arn and "*" in arn]


@pytest.mark.parametrize("part", PARTS)
def test_a_beginning_that_the_configuration_writes_stands_for_its_topics_and_no_others(
    part: Part, flowing: Flowing
) -> None:
    granted = kafka_rights(
        part, flowing(topics=["orders-eu", "orders-us", "payments"], topics_rights_prefixes=["orders-"])
    )

    assert f"{TARGET}:topic/{TARGET_PATH}/us-east.orders-*" in resources(granted, "DescribeTopic")
    assert not [arn for right in granted for arn in right.resources if "orders-eu" in arn]
    assert not may(granted, "WriteData", f"{TARGET}:topic/{TARGET_PATH}/us-east.paying")


# Patterns


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        (".*", ["*"]),
        ("orders.*", ["orders*"]),
        ("orders-.+", ["orders-*"]),
        ("orders?", ["order*"]),
        ("ab*", ["a*"]),
        ("ab{0,2}", ["a*"]),
        ("ab+", ["ab*"]),
        (r"a\.b\..*", ["a.b.*"]),
        ("a.b|c-.*", ["a*", "c-*"]),
        ("orders|payments", ["orders", "payments"]),
        ("(a|b)c", ["*"]),
        ("x(a|b)c", ["x*"]),
        ("[|]a|b", ["*", "b"]),
        (r"a\|b", ["a*"]),
        ("(?i)orders", ["*"]),
        ("^orders.*", ["orders*"]),
        (r"a\d+", ["a*"]),
    ],
)
def test_a_pattern_becomes_what_its_names_begin_with(pattern: str, names: list[str]) -> None:
    assert list(prefixes([pattern])) == names


def test_a_name_that_a_wider_one_covers_is_not_repeated() -> None:
    assert distinct(["orders-eu", "orders*", "payments", "orders-*"]) == ("orders*", "payments")
