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

Flowing = Callable[..., FlowDeployment]


@pytest.fixture
def flowing(tmp_path: Path) -> Flowing:
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
        path = tmp_path / "replication.yaml"
        path.write_text(dump_yaml(document))
        return plan(load(path)).flows[0]

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


def test_every_call_of_the_adapters_has_a_row() -> None:
    calls = {call for module in ADAPTERS.glob("kafka/*.py") for call in used(module)}

    assert calls - NEEDS.keys() == set()


def test_every_row_is_a_call_of_the_adapters() -> None:
    calls = {call for module in ADAPTERS.glob("kafka/*.py") for call in used(module)}

    assert NEEDS.keys() - calls == {POLLERS}


def test_the_table_has_the_actions_that_iam_has_and_the_resources_they_take() -> None:
    """cfn-lint ships what the Service Authorization Reference says."""
    shipped = files("cfnlint.data.AdditionalSpecs").joinpath("Policies.json").read_text()
    actions = json.loads(shipped)["kafka-cluster"]["Actions"]

    assert {action for needed in NEEDS.values() for action in needed} == KIND.keys()
    for action, kind in KIND.items():
        assert actions[action.lower()]["Resources"] == [kind]


def test_our_consumers_are_called_what_the_rights_say() -> None:
    found = {
        name
        for module in ADAPTERS.glob("kafka/*.py")
        for name in re.findall(r'"group\.id": ([^,\n]+)', module.read_text())
    }

    assert found == {"LOOK_GROUP", "GAPS_GROUP", "JOB_GROUP", "PULL_GROUP", "self._group"}
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
    "control": {"AlterTopicDynamicConfiguration", "DeleteGroup"},  # it only reads an entry; drills delete groups
    "refresh_topics": {"DeleteGroup"},
    "pull": {"WriteDataIdempotently", "AlterTopicDynamicConfiguration", "DeleteGroup"},  # as the forwarder
}
"""Needed by calls of the imported adapters which this function does not get to."""


@pytest.mark.parametrize("part", UNREACHED)
def test_a_role_may_what_its_function_calls_and_nothing_else(part: Part, flowing: Flowing) -> None:
    everything = flowing(**{"emit.offset-syncs.enabled": True}, start="latest", oversize="copy")
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


@pytest.mark.parametrize("part", ["forward", "pull", "control", "refresh_topics", "jobs"])
@pytest.mark.parametrize("cluster", [f"/{SOURCE_PATH}", f"/{TARGET_PATH}"])
def test_what_an_action_requires_is_granted_on_the_same_cluster(part: Part, cluster: str, flowing: Flowing) -> None:
    granted = {
        action.removeprefix("kafka-cluster:")
        for right in kafka_rights(
            part, flowing(start="latest", trigger_overrides={"payments": "schedule"}, oversize="copy")
        )
        if any(cluster in arn for arn in right.resources)
        for action in right.actions
    }

    assert granted
    assert {action: REQUIRED[action] - granted for action in granted - {"Connect"} if REQUIRED[action] - granted} == {}


# Names


def test_the_forwarder_reads_the_flows_topics_and_writes_their_remote_topics(flowing: Flowing) -> None:
    granted = kafka_rights("forward", flowing())

    assert resources(granted, "WriteData") == {
        f"{TARGET}:topic/{TARGET_PATH}/{topic}"
        for topic in ("us-east.orders*", "us-east.payments", "us-east.heartbeats", "us-east.*.heartbeats")
    }
    assert {arn for arn in resources(granted, "ReadData") if arn.startswith(SOURCE)} == {
        f"{SOURCE}:topic/{SOURCE_PATH}/{topic}" for topic in ("orders*", "payments", "heartbeats", "*.heartbeats")
    }


def test_gaps_are_read_by_the_forwarder_and_log_ends_copied_by_control_only_where_the_flow_says_so(
    flowing: Flowing,
) -> None:
    gaps = f"{SOURCE}:group/{SOURCE_PATH}/mirrorless-gaps"
    mapping = f"{SOURCE}:group/{SOURCE_PATH}/mirrorless.us-east.us-west.orders"
    remote = f"{TARGET}:topic/{TARGET_PATH}/us-east.orders"
    for copies in (False, True):
        flow = flowing(groups=["shop"], oversize="copy" if copies else "ledger")
        forward, control = kafka_rights("forward", flow), kafka_rights("control", flow)

        assert may(forward, "AlterGroup", gaps) is copies
        assert may(control, "WriteData", remote) is copies
        assert may(control, "DescribeGroup", mapping) is copies
        assert not may(control, "AlterGroup", mapping)


def test_nothing_more_may_be_read_where_every_topic_is_scheduled(flowing: Flowing) -> None:
    scheduled = flowing(trigger="schedule", oversize="copy")

    assert kafka_rights("forward", scheduled) == kafka_rights("forward", flowing(trigger="schedule"))
    assert "oversize" not in scheduled.flow.function_settings()


def test_pollers_join_the_groups_of_this_flows_mappings_only(flowing: Flowing) -> None:
    granted = kafka_rights("forward", flowing())

    assert {arn for arn in resources(granted, "AlterGroup") if arn.startswith(SOURCE)} == {
        f"{SOURCE}:group/{SOURCE_PATH}/mirrorless.us-east.us-west.*"
    }
    assert resources(granted, "AlterTransactionalId") == {
        f"{TARGET}:transactional-id/{TARGET_PATH}/mirrorless.us-east.us-west.*"
    }


def test_topics_that_keep_their_names_are_granted_by_these_names(flowing: Flowing) -> None:
    granted = kafka_rights("forward", flowing(replication_policy="identity", heartbeats_replication_enabled=False))

    assert resources(granted, "WriteData") == {
        f"{TARGET}:topic/{TARGET_PATH}/{name}" for name in ("orders*", "payments")
    }


def test_nothing_is_written_to_the_source_unless_the_configuration_has_it(flowing: Flowing) -> None:
    quiet = flowing(sync_group_offsets_reverse_enabled=False, emit_heartbeats_source_enabled=False)

    for part in ("forward", "control", "refresh_topics"):
        for action in ("WriteData", "CreateTopic", "AlterTopic", "WriteDataIdempotently"):
            assert not [arn for arn in resources(kafka_rights(part, quiet), action) if arn.startswith(SOURCE)]


def test_group_offsets_are_committed_only_where_they_are_synchronised(flowing: Flowing) -> None:
    still = flowing(sync_group_offsets_reverse_enabled=False, sync_group_offsets_enabled=False)
    moving = flowing(groups=["shop", "billing-.*"])

    assert not may(kafka_rights("control", still), "AlterGroup", f"{TARGET}:group/{TARGET_PATH}/shop")
    assert may(kafka_rights("control", moving), "AlterGroup", f"{TARGET}:group/{TARGET_PATH}/shop")
    assert may(kafka_rights("control", moving), "AlterGroup", f"{SOURCE}:group/{SOURCE_PATH}/billing-eu")
    assert not may(kafka_rights("control", moving), "AlterGroup", f"{TARGET}:group/{TARGET_PATH}/shopping")


def test_who_carries_groups_between_the_same_names_reads_the_targets_log_as_the_sources(flowing: Flowing) -> None:
    alone = flowing(replication_policy="identity", groups=["shop"])
    pair = replace(alone, flow=replace(alone.flow, origins=("us-east", "us-west"), has_counterpart=True))
    reader = f"{TARGET}:group/{TARGET_PATH}/{GAPS_GROUP}"

    assert not may(kafka_rights("control", alone), "DescribeGroup", reader)
    assert may(kafka_rights("control", pair), "DescribeGroup", reader)
    assert may(kafka_rights("control", pair), "ReadData", f"{TARGET}:topic/{TARGET_PATH}/payments")


def test_internal_topics_are_named_one_by_one(flowing: Flowing) -> None:
    granted = kafka_rights("control", flowing(**{"emit.offset-syncs.enabled": True}))

    assert resources(granted, "CreateTopic") == {
        f"{TARGET}:topic/{TARGET_PATH}/heartbeats",
        f"{TARGET}:topic/{TARGET_PATH}/us-east.checkpoints.internal",
        f"{TARGET}:topic/{TARGET_PATH}/mm2-offset-syncs.us-east.internal",
        f"{SOURCE}:topic/{SOURCE_PATH}/heartbeats",
        f"{SOURCE}:topic/{SOURCE_PATH}/us-west.checkpoints.internal",
    }


def test_configs_of_remote_topics_are_altered_only_where_they_are_synchronised(flowing: Flowing) -> None:
    action = "AlterTopicDynamicConfiguration"

    granted = kafka_rights("refresh_topics", flowing())

    assert may(granted, action, f"{TARGET}:topic/{TARGET_PATH}/us-east.payments")
    assert not may(granted, action, f"{SOURCE}:topic/{SOURCE_PATH}/payments")
    assert resources(kafka_rights("refresh_topics", flowing(sync_topic_configs_enabled=False)), action) == set()


def test_acls_are_altered_on_the_target_alone_and_only_where_they_are_synchronised(flowing: Flowing) -> None:
    assert resources(kafka_rights("refresh_topics", flowing()), "AlterCluster") == {f"{TARGET}:cluster/{TARGET_PATH}"}
    assert resources(kafka_rights("refresh_topics", flowing(sync_topic_acls_enabled=False)), "AlterCluster") == set()


def test_a_flow_without_transactions_may_still_settle_what_an_earlier_one_left(flowing: Flowing) -> None:
    granted = kafka_rights("forward", flowing(delivery="at_least_once"))

    assert may(granted, "AlterTransactionalId", f"{TARGET}:transactional-id/{TARGET_PATH}/mirrorless.us-east.us-west.1")
    assert resources(granted, "WriteDataIdempotently") == {f"{TARGET}:cluster/{TARGET_PATH}"}


def test_jobs_leave_heartbeats_alone_and_set_orphans_aside(flowing: Flowing) -> None:
    granted = kafka_rights("jobs", flowing())

    assert not may(granted, "WriteData", f"{SOURCE}:topic/{SOURCE_PATH}/heartbeats")
    assert may(granted, "CreateTopic", f"{SOURCE}:topic/{SOURCE_PATH}/payments.orphans")
    assert not may(granted, "CreateTopic", f"{SOURCE}:topic/{SOURCE_PATH}/payments")


def test_jobs_that_bring_nothing_back_do_not_write_to_the_source(flowing: Flowing) -> None:
    granted = kafka_rights("jobs", flowing(reconcile_enabled=False))

    writing = {"WriteData", "CreateTopic", "AlterTopic", "AlterTransactionalId", "WriteDataIdempotently"}
    assert not {arn for action in writing for arn in resources(granted, action) if arn.startswith(SOURCE)}
    assert may(granted, "ReadData", f"{SOURCE}:topic/{SOURCE_PATH}/payments")
    assert may(granted, "WriteData", f"{TARGET}:topic/{TARGET_PATH}/us-east.payments")


def test_jobs_bring_back_by_the_flow_turned_around(flowing: Flowing) -> None:
    granted = kafka_rights("jobs", flowing())

    for cluster in (f"{SOURCE}:transactional-id/{SOURCE_PATH}", f"{TARGET}:transactional-id/{TARGET_PATH}"):
        for flow in ("us-east.us-west", "us-west.us-east"):
            assert may(granted, "AlterTransactionalId", f"{cluster}/mirrorless.{flow}.1")
        assert not may(granted, "AlterTransactionalId", f"{cluster}/mirrorless.us-east.hub.1")


def test_jobs_read_by_consumers_of_their_own(flowing: Flowing) -> None:
    granted = kafka_rights("jobs", flowing())

    for cluster, path in ((SOURCE, SOURCE_PATH), (TARGET, TARGET_PATH)):
        assert may(granted, "AlterGroup", f"{cluster}:group/{path}/{JOB_GROUP}")


# Clusters


def test_a_cluster_with_a_secret_needs_no_right_of_this_kind(flowing: Flowing) -> None:
    key = "arn:aws:kms:us-west-2:111122223333:key/1"
    proof = {"type": "scram", "secret": "AmazonMSK_x", "secret.kms.key.arn": key}
    scram = {"authentication": proof, "bootstrap.servers": ["b-1.uswest.example.com:9096"]}

    granted = kafka_rights("forward", flowing(us_west=scram))

    assert granted
    assert not [arn for right in granted for arn in right.resources if arn.startswith(TARGET)]


def test_a_vpc_connection_stands_for_the_cluster_that_it_leads_to(flowing: Flowing) -> None:
    connection = (
        "arn:aws:kafka:us-west-2:111122223333:vpc-connection/999988887777/vault/0f0e0d0c-1b2a-4c3d-8e9f-000000000000-1"
    )

    connected = {"msk.cluster.arn": connection, "bootstrap.servers": ["b-1.uswest.example.com:14001"]}
    granted = kafka_rights("forward", flowing(us_west=connected))

    assert "arn:aws:kafka:us-west-2:999988887777:cluster/vault/*" in resources(granted, "Connect")
    assert "arn:aws:kafka:us-west-2:999988887777:topic/vault/*/us-east.payments" in resources(granted, "WriteData")


def test_a_cluster_without_an_arn_is_granted_by_topic_all_the_same(flowing: Flowing) -> None:
    nameless = {"msk.cluster.arn": None, "region": "us-west-2", "account": "111122223333"}

    granted = kafka_rights("forward", flowing(us_west=nameless))

    assert f"{TARGET}:topic/*/*/us-east.payments" in resources(granted, "WriteData")
    assert f"{TARGET}:cluster/*/*" in resources(granted, "Connect")


def test_a_serverless_cluster_gets_only_the_actions_that_it_has(flowing: Flowing) -> None:
    serverless = {"msk.cluster.arn": f"{TARGET}:cluster/us-west/0b5c7e5a-9a0e-4f0c-8d4e-5c6f2f3f7a10-s1"}

    granted = kafka_rights("refresh_topics", flowing(us_west=serverless))

    assert resources(granted, "AlterCluster") == set()
    assert any("-s1" in arn for arn in resources(granted, "CreateTopic"))


@pytest.mark.parametrize("part", ["forward", "pull", "control", "refresh_topics", "jobs"])
def test_a_right_with_a_wildcard_says_why(part: Part, flowing: Flowing) -> None:
    nameless = {"msk.cluster.arn": None, "region": "us-west-2", "account": "111122223333"}

    for flow in (flowing(), flowing(us_west=nameless)):
        for right in kafka_rights(part, flow):
            assert right.reason or not any("*" in arn for arn in right.resources)


PARTS: list[Part] = ["forward", "pull", "control", "refresh_topics", "jobs"]
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
