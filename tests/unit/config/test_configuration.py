"""A valid replication.yaml resolved, and the pages that are generated from the model."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mirrorless.chain.lane import FlowName
from mirrorless.config import Configuration, load
from mirrorless.config.__main__ import PAGES
from mirrorless.config.__main__ import main as generate
from mirrorless.errors import ConfigurationError
from mirrorless.flow.filters import CONFIG_PROPERTIES_EXCLUDE, NameFilter
from mirrorless.flow.settings import SchemaRegistry, control_settings, decode_settings
from mirrorless.scheduled.functions import task_intervals
from mirrorless.transforms.rules import KeySettings, Mask, Rule
from tests.support.commands import Answer, Command, replication_yaml
from tests.support.yaml_text import dump_yaml

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "replication.example.yaml"
NOW = datetime(2026, 6, 1, tzinfo=UTC)
ARN = "arn:aws:kafka:us-east-1:111122223333:cluster/a/1"
MSK = f"bootstrap.servers: a1:9092, msk.cluster.arn: '{ARN}'"

TARGET = (
    'bootstrap.servers: "b1:9092,b2:9092", region: eu-west-1, producer.linger.ms: 5, producer.compression.type: zstd'
)


def configuration(
    flow: str, *, source: str = "bootstrap.servers: a1:9092", target: str = TARGET, defaults: str = "{}"
) -> Configuration:
    text = f"""
clusters:
  a: {{{source}}}
  b: {{{target}}}
flows:
  a->b: {{{flow}}}
defaults: {defaults}
"""
    return load(text, now=NOW)


def request(flow: str, *, source: str = "bootstrap.servers: a1:9092", topic: str = "orders") -> dict[str, Any]:
    return configuration(flow, source=source).flow("a->b").mapping_request(topic)


def test_the_example_is_an_active_pair_that_replicates_orders_exactly_once() -> None:
    example = load(EXAMPLE)

    assert [str(name) for name in example.flows] == ["us-east->eu-west", "eu-west->us-east"]
    for flow in example.enabled_flows:
        assert flow.settings.delivery == "exactly_once"
        assert flow.literal_topics == ("orders", "payments", "customers", "audit-log")
        assert flow.topic_patterns == ()
        assert flow.remote_topic("orders") == f"{flow.name.source}.orders"


def test_the_example_names_its_schema_for_the_editor() -> None:
    first = EXAMPLE.read_text(encoding="utf-8").splitlines()[0]
    schema = first.removeprefix("# yaml-language-server: $schema=")

    assert json.loads((ROOT / schema).read_text(encoding="utf-8"))["title"] == "replication.yaml"


@pytest.mark.parametrize("name", PAGES)
def test_a_generated_page_is_what_the_model_says(name: str, tmp_path: Path) -> None:
    """When this fails: `python -m mirrorless.config`, and commit what it writes."""
    generate(tmp_path)

    assert (ROOT / "docs" / name).read_text(encoding="utf-8") == (tmp_path / name).read_text(encoding="utf-8")


def test_a_flow_overrides_defaults_key_by_key() -> None:
    flow = configuration(
        "topics: [orders], mapping: {batch.size: 50}, replication.factor: 1",
        defaults="{replication.factor: 3, delivery: at_least_once, mapping: {batch.size: 7, maximum.pollers: 9}}",
    ).flow("a->b")

    assert flow.settings.replication_factor == 1
    assert flow.settings.delivery == "at_least_once"
    assert flow.settings.mapping.batch_size == 50
    assert flow.settings.mapping.maximum_pollers == 9


def test_the_default_mapping_loses_nothing() -> None:
    """Retried for ever, sent nowhere else, from the horizon, in a named group: any other choice can lose records."""
    assert request("topics: [orders]") == {
        "Topics": ["orders"],
        "Enabled": True,
        "BatchSize": 10_000,
        "StartingPosition": "TRIM_HORIZON",
        "SelfManagedEventSource": {"Endpoints": {"KAFKA_BOOTSTRAP_SERVERS": ["a1:9092"]}},
        "SelfManagedKafkaEventSourceConfig": {"ConsumerGroupId": "mirrorless.a.b.orders"},
        "ProvisionedPollerConfig": {"MinimumPollers": 1, "MaximumPollers": 10},
        "MaximumRetryAttempts": -1,
        "FunctionResponseTypes": ["ReportBatchItemFailures"],
        "MetricsConfig": {"Metrics": ["EventCount", "ErrorCount", "KafkaMetrics"]},
    }


VPC = "vpc: {subnets: [subnet-1], security.groups: [sg-1]}"


@pytest.mark.parametrize(
    ("target", "mapping", "group"),
    [
        (VPC, "{}", "mirrorless-pollers-a_b"),
        (VPC, "{poller.group.name: all}", "all"),
        (VPC, '{poller.group.name: ""}', ""),
        ("region: eu-west-1", "{}", None),  # Lambda documents groups of one VPC only
    ],
    ids=["left out", "named", "switched off", "public"],
)
def test_mappings_share_pollers_as_the_configuration_says(target: str, mapping: str, group: str | None) -> None:
    text = f"topics: [orders], mapping: {mapping}"
    flow = configuration(text, target=f"bootstrap.servers: b1:9092, {target}").flow("a->b")

    named, template = (
        each["ProvisionedPollerConfig"].get("PollerGroupName")
        for each in (flow.mapping_request("orders"), flow.mapping_template())
    )

    assert template == group
    assert named == (f"{group}_literal" if group == "mirrorless-pollers-a_b" else group)


def test_a_flow_may_go_back_to_groups_of_its_own() -> None:
    source = f"bootstrap.servers: a1:9092, {VPC}"
    flow = configuration(
        "topics: [orders], mapping: {poller.group.name: null}, function: {run.in: source}",
        source=source,
        defaults="{mapping: {poller.group.name: all}}",
    ).flow("a->b")

    assert flow.own_poller_groups


def test_an_on_demand_mapping_has_no_option_that_lambda_refuses_there() -> None:
    shared = "{mapping: {maximum.pollers: 4, poller.group.name: all}}"
    flow = configuration("topics: [orders], mapping: {mode: on-demand}", defaults=shared).flow("a->b")

    assert set(flow.mapping_request("orders")) == {
        "Topics",
        "Enabled",
        "BatchSize",
        "StartingPosition",
        "SelfManagedEventSource",
        "SelfManagedKafkaEventSourceConfig",
    }


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("earliest", {"StartingPosition": "TRIM_HORIZON"}),
        ("backfill", {"StartingPosition": "LATEST"}),
        ("latest", {"StartingPosition": "LATEST"}),
        (
            "2026-01-01T01:00:00+01:00",
            {"StartingPosition": "AT_TIMESTAMP", "StartingPositionTimestamp": 1_767_225_600},
        ),
    ],
)
def test_a_flow_starts_where_it_says(start: str, expected: dict[str, Any]) -> None:
    answer = request(f"topics: [orders], start: '{start}'")

    assert {key: value for key, value in answer.items() if key.startswith("StartingPosition")} == expected


def test_an_msk_cluster_is_mapped_by_its_arn_in_its_own_region() -> None:
    key = "arn:aws:kms:us-east-1:111122223333:key/1"
    scram = f"{{type: scram, secret: AmazonMSK_m, secret.kms.key.arn: '{key}'}}"
    source = f"bootstrap.servers: a1:9096, msk.cluster.arn: '{ARN}', authentication: {scram}"

    here = request("topics: [orders]", source=source)
    there = request("topics: [orders], function: {run.in: target}", source=source)

    assert here["EventSourceArn"] == ARN
    assert here["SourceAccessConfigurations"] == [{"Type": "SASL_SCRAM_512_AUTH", "URI": "AmazonMSK_m"}]
    assert "EventSourceArn" not in there
    assert there["SelfManagedEventSource"] == {"Endpoints": {"KAFKA_BOOTSTRAP_SERVERS": ["a1:9096"]}}


BY = "bootstrap.servers: a1:9093, authentication: "
NETWORK = [("VPC_SUBNET", "subnet:subnet-1"), ("VPC_SECURITY_GROUP", "security_group:sg-1")]
AUTHORITY = ("SERVER_ROOT_CA_CERTIFICATE", "arn:root")
IN_VPC = "bootstrap.servers: b1:9092, vpc: {subnets: [subnet-1], security.groups: [sg-1]}"
IAM = "region: us-east-1, authentication: {type: iam}"


@pytest.mark.parametrize(
    ("source", "access"),
    [
        (f"{BY}{{type: plain, secret: user}}", [("BASIC_AUTH", "arn:user")]),
        (f"{BY}{{type: plain, secret: user, ca: root}}", [("BASIC_AUTH", "arn:user"), AUTHORITY]),
        (f"{BY}{{type: tls, ca: root}}", [AUTHORITY]),
        (f"{BY}{{type: mtls, secret: own, ca: root}}", [("CLIENT_CERTIFICATE_TLS_AUTH", "arn:own"), AUTHORITY]),
        (f"{BY}{{type: oauthbearer, secret: client}}", [("OAUTHBEARER_AUTH", "arn:client")]),
        (
            f"{BY}{{type: oauthbearer, secret: client, scope: all, logical.cluster: lkc-1, identity.pool: pl}}",
            [
                ("OAUTHBEARER_AUTH", "arn:client"),
                ("OAUTHBEARER_SCOPE", "all"),
                ("OAUTHBEARER_LOGICAL_CLUSTER", "lkc-1"),
                ("OAUTHBEARER_IDENTITY_POOL", "pl"),
            ],
        ),
        # IAM is named only where Lambda does not find it itself.
        (f"bootstrap.servers: a1:9098, {IAM}", [("IAM_AUTH", None)]),
    ],
)
def test_pollers_authenticate_as_clients_do_from_the_network_where_they_are(
    source: str, access: list[tuple[str, str | None]]
) -> None:
    source += ", vpc: {subnets: [subnet-a], security.groups: [sg-a]}"
    there = [(kind, uri.replace("-1", "-a")) for kind, uri in NETWORK]
    for run_in, network in (("target", NETWORK), ("source", there)):
        keys = f"topics: [orders], function: {{run.in: {run_in}}}"
        flow = configuration(keys, source=source, target=IN_VPC).flow("a->b")

        answer = flow.mapping_request("orders", secret_arn=lambda name: f"arn:{name}")["SourceAccessConfigurations"]

        assert [(each["Type"], each.get("URI")) for each in answer] == [*access, *network]


@pytest.mark.parametrize("authentication", ["{type: tls}", "{type: iam}"])
def test_an_msk_cluster_without_a_secret_is_mapped_by_its_arn_alone(authentication: str) -> None:
    port = 9094 if "tls" in authentication else 9098
    source = f"bootstrap.servers: a1:{port}, msk.cluster.arn: '{ARN}', authentication: {authentication}"

    answer = request("topics: [orders]", source=source)

    assert answer["EventSourceArn"] == ARN
    assert "SourceAccessConfigurations" not in answer


def test_functions_learn_what_their_clients_need_of_a_token_and_no_more() -> None:
    source = "bootstrap.servers: a1:9093, authentication: {type: oauthbearer, secret: client, logical.cluster: lkc-1}"

    text = configuration("topics: [orders]", source=source).flow("a->b").function_settings_json()

    assert '"authentication":{"type":"oauthbearer","secret":"client","logical.cluster":"lkc-1"}' in text
    assert decode_settings(text).source.authentication.logical_cluster == "lkc-1"


def test_a_flow_runs_where_its_msk_source_is_and_otherwise_beside_its_target() -> None:
    own = "bootstrap.servers: a1:9098, region: us-east-1"

    assert configuration("topics: [orders]", source=MSK).flow("a->b").function_region == "us-east-1"
    assert configuration("topics: [orders]", source=own).flow("a->b").function_region == "eu-west-1"
    chosen = configuration("topics: [orders], function: {run.in: source}", source=own)
    assert chosen.flow("a->b").function_region == "us-east-1"


def test_tables_in_another_account_than_the_functions_are_reached_by_a_role() -> None:
    target = "bootstrap.servers: b1:9098, region: us-east-1, account: '444455556666'"

    def role(run_in: str) -> str | None:
        flow = configuration(f"topics: [orders], function: {{run.in: {run_in}}}", source=MSK, target=target)
        return flow.flow("a->b").function_settings().tables_role

    assert role("source") == "arn:aws:iam::444455556666:role/mirrorless-tables-a_b"
    assert role("target") is None
    china = MSK.replace("aws:", "aws-cn:").replace("us-east-1", "cn-north-1")
    there = configuration("topics: [orders]", source=china, target=target.replace("us-east-1", "cn-northwest-1"))
    assert there.flow("a->b").tables_role == "arn:aws-cn:iam::444455556666:role/mirrorless-tables-a_b"


def test_a_laboratory_has_one_account_whatever_is_written() -> None:
    ends = {
        "source": "bootstrap.servers: a1:9098, region: us-east-1, account: '111122223333'",
        "target": "bootstrap.servers: b1:9098, region: us-east-1, account: '444455556666'",
    }
    written = configuration("topics: [orders], function: {run.in: source}", **ends)

    assert written.flow("a->b").tables_role
    assert written.with_clusters_at({"a": "127.0.0.1:1", "b": "127.0.0.1:2"}).flow("a->b").tables_role is None


def test_the_forwarder_gets_the_settings_that_it_needs_and_no_more() -> None:
    flow = configuration("topics: [orders], config.properties.exclude: [retention.ms]").flow("a->b")

    assert json.loads(flow.function_settings_json()) == {
        "flow": "a->b",
        "config_properties_exclude": ["retention.ms"],
        "source": {"alias": "a", "bootstrap": "a1:9092", "authentication": {}},
        "target": {
            "alias": "b",
            "bootstrap": "b1:9092,b2:9092",
            "region": "eu-west-1",
            "authentication": {},
        },
        "producer": {"compression.type": "zstd", "linger.ms": 5},
        "tables": {
            "offset_map": "mirrorless-offset-map-a_b",
            "lanes": "mirrorless-lanes-a_b",
            "loss_ledger": "mirrorless-loss-ledger-a_b",
            "checkpoints": "mirrorless-checkpoints-a_b",
            "control": "mirrorless-control-a_b",
        },
    }


def test_a_default_that_is_written_out_takes_no_room_in_the_variable() -> None:
    """Read from a file, a list is equal to the default, and not the same."""
    written = f"topics: [orders], config.properties.exclude: {json.dumps(CONFIG_PROPERTIES_EXCLUDE)}"

    assert configuration(written).flow("a->b").function_settings_json() == (
        configuration("topics: [orders]").flow("a->b").function_settings_json()
    )


def test_a_consumer_group_is_one_that_lambda_takes() -> None:
    flow = load(EXAMPLE).flow("us-east->eu-west")

    assert flow.consumer_group("audit-log") == "mirrorless.us-east.eu-west.audit-log"
    assert re.fullmatch(r"[a-zA-Z0-9-/*:_+=.@]{1,200}", flow.consumer_group("audit-log"))
    with pytest.raises(ConfigurationError, match="Lambda takes 200"):
        flow.consumer_group("x" * 190)


def test_stand_ins_keep_the_flows_and_nothing_of_the_cloud() -> None:
    lab = load(EXAMPLE).with_clusters_at({"us-east": "127.0.0.1:1001", "eu-west": "127.0.0.1:1002"})
    flow = lab.flow("us-east->eu-west")

    answer = flow.mapping_request("orders")

    assert answer["SelfManagedEventSource"] == {"Endpoints": {"KAFKA_BOOTSTRAP_SERVERS": ["127.0.0.1:1001"]}}
    assert "SourceAccessConfigurations" not in answer
    assert flow.function_settings().target.bootstrap == "127.0.0.1:1002"
    assert flow.function_settings().replication_factor == 1
    assert flow.settings.heartbeats_topic_replication_factor == 1


def test_a_norwegian_cluster_is_no_truth_value() -> None:
    """YAML 1.1 reads the alias `no` as false."""
    text = (
        "clusters: {no: {bootstrap.servers: n:1}, se: {bootstrap.servers: s:1}}\nflows:\n  no->se: {topics: orders}\n"
    )

    assert load(text).flow("no->se").name == FlowName("no", "se")


def test_an_unknown_flow_is_answered_with_those_that_exist() -> None:
    with pytest.raises(ConfigurationError, match="us-east->eu-west, eu-west->us-east"):
        load(EXAMPLE).flow("us-east->ap-south")


@pytest.fixture
def check(command: Command, tmp_path: Path) -> Callable[..., Answer]:
    """Checks a text, or the example, with some options."""

    def run(text: str, *options: str) -> Answer:
        (file := tmp_path / "replication.yaml").write_text(text)
        return command("config", "check", str(file), *options)

    return run


WRITTEN = EXAMPLE.read_text(encoding="utf-8")


def test_config_check_says_what_would_be_made(check: Callable[..., Answer]) -> None:
    answer, for_programs = check(WRITTEN), check(WRITTEN, "--json")

    assert (answer.code, for_programs.code, for_programs.json["valid"]) == (0, 0, True)
    assert "us-east->eu-west: exactly once, from earliest" in answer.out
    assert "orders     ->  us-east.orders" in answer.out
    assert for_programs.json["flows"][0]["topics"][0] == {
        "topic": "orders",
        "remote_topic": "us-east.orders",
        "consumer_group": "mirrorless.us-east.eu-west.orders",
        "trigger": "mapping",
    }


def test_config_check_forecasts_dollars_and_latency_where_they_are_decided(check: Callable[..., Answer]) -> None:
    windowed = WRITTEN.replace("mode: prov", "maximum.batching.window.seconds: 5\n    mode: prov")

    def forecast(text: str, rate: str) -> tuple[str, dict[str, Any]]:
        found = check(text, "--mb-per-second", rate, "--json").json["flows"][0]["forecast"]
        return check(text, "--mb-per-second", rate).out, found

    by_default, before = forecast(WRITTEN, "1")
    _, after = forecast(windowed, "1")
    busy, most = forecast(WRITTEN, "20000")

    alternative = f"${after['dollars_a_month']:,.0f} and 5.3 s"
    assert f"{alternative} with `maximum.batching.window.seconds: 5`" in by_default
    assert after["dollars_a_month"] < before["dollars_a_month"]
    assert before["dollars_a_month_idle"] < before["dollars_a_month"] < most["dollars_a_month"]
    assert (before["mappings"], before["topics"]) == (4, 4)
    assert ("! " in by_default, "! " in busy) == (False, True)


@pytest.mark.parametrize(
    ("keys", "said", "expected"),
    [
        ("emit.heartbeats.interval.seconds: 60", "$", False),
        ("emit.heartbeats.interval.seconds: 1", "about $14 a month more than once a minute", True),
        ("config.properties.exclude: [min.insync.replicas]", "message.timestamp.type is not copied", True),
        ("config.properties.exclude: [message.timestamp.type]", "message.timestamp.type is not copied", False),
        ("config.properties.exclude: 'message.*'", "message.timestamp.type is not copied", False),
    ],
)
def test_config_check_prices_frequent_heartbeats_and_names_what_is_never_copied(
    check: Callable[..., Answer], keys: str, said: str, *, expected: bool
) -> None:
    answer = check(replication_yaml(f"us-east->eu-west: {{topics: [orders], {keys}}}"), "--lab")

    assert (answer.code, said in answer.out) == (0, expected)


def test_config_check_prints_every_problem_and_exits_2(check: Callable[..., Answer]) -> None:
    wrong = WRITTEN.replace("earliest", "erliest").replace("arm64", "arm")

    in_words, in_json = check(wrong), check(wrong, "--json")

    assert (in_words.code, in_json.code, in_json.json["valid"]) == (2, 2, False)
    fields = [problem["field"] for problem in in_json.json["problems"]]
    assert fields == ["defaults.start", "defaults.function.architecture"]
    assert all(field in in_words.err for field in fields)


def test_config_check_says_what_becomes_of_records(check: Callable[..., Answer]) -> None:
    answer, for_programs = check(RULES, "--lab"), check(RULES, "--lab", "--json")

    assert (
        "rule 3 of customers, orders-.*: kept where headers.region != 'internal'; changed in customer.email, "
        in answer.out
    )
    assert "rule 1 of .*: changed in value" in answer.out
    first = for_programs.json["flows"][0]["transforms"][0]
    assert (first["version"], first["fields"]["items[*].note"]) == (3, {"set": None})


def test_config_check_of_no_file_exits_2(command: Command, tmp_path: Path) -> None:
    answer = command("config", "check", str(tmp_path / "none.yaml"))

    assert (answer.code, "cannot be read" in answer.err) == (2, True)


def test_config_check_says_what_is_scheduled(check: Callable[..., Answer]) -> None:
    flow = (
        "a->b: {topics: [orders, logs], trigger: schedule, trigger.overrides: {orders: mapping}, "
        "schedule: {interval.seconds: 300, shards: 2}}"
    )
    ends = {"a": "bootstrap.servers: a1:9092", "b": "bootstrap.servers: b1:9092, region: eu-west-1"}
    text = replication_yaml(flow, clusters=ends)

    refused = check(text)  # what `make synth` would refuse, too
    assert (refused.code, "is deployed in its account, and none is written" in refused.err) == (2, True)
    in_words = check(text, "--lab").out
    (found,) = check(text, "--lab", "--json").json["flows"]

    assert "scheduled topics are read every 300 s in eu-west-1, by 2 runs of 512 MB" in in_words
    assert "logs    ->  a.logs, by schedule\n" in in_words
    assert "orders  ->  a.orders\n" in in_words
    assert {each["topic"]: each["trigger"] for each in found["topics"]} == {"orders": "mapping", "logs": "schedule"}
    assert (found["schedule"]["interval_seconds"], found["schedule"]["region"]) == (300, "eu-west-1")


def test_a_topic_of_one_letter_is_replicated_by_a_schedule() -> None:
    flow = configuration("topics: [o], trigger: schedule").flow("a->b")

    assert flow.triggers.of("o") == "schedule"


@pytest.mark.parametrize(
    ("flow", "defaults", "expected"),
    [
        ("topics: [orders]", "{}", False),
        ("topics: [orders], trigger: schedule", "{}", True),
        ("topics: [orders], trigger.overrides: {orders: mapping}", "{}", True),  # it may be on its way back
        ("topics: ['o.*'], schedule: {shards: 2}", "{}", True),
        ("topics: ['o.*']", "{schedule: {shards: 2}}", True),
    ],
)
def test_a_flow_has_the_function_pull_while_topics_may_be_scheduled(
    flow: str, defaults: str, *, expected: bool
) -> None:
    loaded = configuration(flow, defaults=defaults)

    assert loaded.flow("a->b").has_pull is expected
    assert loaded.with_clusters_at({"a": "127.0.0.1:1", "b": "127.0.0.1:2"}).flow("a->b").has_pull is expected


def test_the_schedules_hold_every_setting_of_the_flow() -> None:
    keys = "start: latest, sync.group.offsets.enabled: true, use.defaults.from: source"
    flow = configuration(f"topics: ['orders', 'audit-.*'], {keys}").flow("a->b")

    settings = control_settings(json.loads(msgspec.json.encode(flow.control_settings("forwarder"))))

    assert settings == flow.control_settings("forwarder")
    assert settings.use_defaults_from == "source"
    assert settings.topic_filter.patterns == ("audit-.*",)
    assert settings.policy == flow.policy
    assert settings.consumer_group("orders") == flow.consumer_group("orders")
    assert (settings.start, settings.function_name, settings.function_region) == (
        "latest",
        "forwarder",
        flow.function_region,
    )
    assert settings.sync_group_offsets_seconds == 2
    assert settings.sync_group_offsets_reverse_enabled is False


def test_what_differs_from_a_default_reaches_the_schedules_and_only_what_replicates_the_forwarder() -> None:
    flow = configuration("topics: [orders], groups: [shop], emit.heartbeats.interval.seconds: 5").flow("a->b")
    control = flow.control_settings("forwarder")

    assert (control.topics, control.groups, control.emit_heartbeats_interval_seconds) == (("orders",), ("shop",), 5)
    assert flow.function_settings() == configuration("topics: [payments]").flow("a->b").function_settings()


@pytest.mark.parametrize("policy", ["prefixed", "identity"])
@pytest.mark.parametrize("separator", [".", "_"])
def test_the_forwarder_and_the_scheduled_functions_name_remote_topics_alike(policy: str, separator: str) -> None:
    """Heartbeats have their prefix under `identity` too, so the separator matters there as well."""
    flow = configuration(
        f"topics: [orders], replication.policy: {policy}, replication.policy.separator: '{separator}'"
    ).flow("a->b")
    forwarder = decode_settings(flow.function_settings_json())
    control = flow.control_settings("forwarder")

    for topic in ("orders", "heartbeats", f"c{separator}heartbeats"):
        assert forwarder.remote_topic(topic) == control.policy.remote_topic("a", topic) == flow.remote_topic(topic)
    assert flow.remote_topic("heartbeats") == f"a{separator}heartbeats"


@pytest.mark.parametrize("policy", ["prefixed", "identity"])
def test_functions_and_mappings_name_topics_by_the_prefix_of_a_cluster_and_all_else_by_its_alias(policy: str) -> None:
    ends = {"source": "bootstrap.servers: a1:9092, topic.prefix: A.1", "target": f"{TARGET}, topic.prefix: B_2"}
    flow = configuration(f"topics: [orders], replication.policy: {policy}", **ends).flow("a->b")
    control = control_settings(json.loads(msgspec.json.encode(flow.control_settings("forwarder"))))

    for settings in (decode_settings(flow.function_settings_json()), control):
        assert settings.remote_topic("orders") == ("A.1.orders" if policy == "prefixed" else "orders")
        assert settings.remote_topic("heartbeats") == flow.remote_topic("heartbeats") == "A.1.heartbeats"
        assert settings.policy.checkpoints_topic("a") == "A.1.checkpoints.internal"
    assert (control.policy.topic_source("B_2.heartbeats"), control.replicates("B_2.heartbeats")) == ("b", False)
    assert flow.group_name("orders") == "mirrorless.a.b.orders"
    assert flow.function_settings().tables.lanes == "mirrorless-lanes-a_b"


def test_a_task_that_is_turned_off_has_no_interval() -> None:
    flow = configuration("topics: [orders], emit.heartbeats.enabled: false").flow("a->b")

    assert "heartbeats" not in task_intervals(flow.control_settings("forwarder"))


def test_a_found_topic_is_mapped_like_a_named_one_but_from_its_first_record_on() -> None:
    flow = configuration("topics: [orders], start: 2026-01-31T12:00:00Z").flow("a->b")

    named, template = flow.mapping_request("orders"), flow.mapping_template()

    assert "Topics" not in template
    assert template["SelfManagedKafkaEventSourceConfig"] == {}
    assert template["StartingPosition"] == "TRIM_HORIZON"
    differing = {"Topics", "SelfManagedKafkaEventSourceConfig", "StartingPosition", "StartingPositionTimestamp"}
    assert {key: value for key, value in named.items() if key not in differing} == {
        key: value for key, value in template.items() if key not in differing
    }


def test_an_input_that_is_not_a_schedules_is_refused_with_the_field_that_is_wrong() -> None:
    with pytest.raises(ConfigurationError, match="flow"):
        control_settings({"topics": ["orders"]})
    settings = msgspec.to_builtins(configuration("topics: [orders]").flow("a->b").control_settings("forwarder"))
    with pytest.raises(ConfigurationError, match="heartbeat_seconds"):
        control_settings(settings | {"heartbeat_seconds": 1})


@pytest.mark.parametrize("policy", ["prefixed", "identity"])
def test_no_filter_is_made_for_each_topic_and_no_name_is_compiled(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both for each of a thousand names would be a million, and half a minute of `config check`."""
    made: Counter[str] = Counter()

    def counting(what: str, make: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **options: Any) -> Any:
            made[what] += 1
            return make(*args, **options)

        return counted

    monkeypatch.setattr("mirrorless.flow.settings.NameFilter", counting("filters", NameFilter))
    monkeypatch.setattr("mirrorless.flow.filters.re.compile", counting("patterns", re.compile))
    work = []
    for count in (3, 60):
        flows = {
            f"{source}->{target}": {"topics": [f"{source}-{each}" for each in range(count)] + extra}
            for source, target, extra in (("a", "b", ["more-.*"]), ("b", "a", []), ("c", "b", []))
        }
        clusters = {alias: {"bootstrap.servers": f"{alias}1:9092"} for alias in "abc"}
        made.clear()
        load(dump_yaml({"clusters": clusters, "flows": flows, "defaults": {"replication.policy": policy}}), now=NOW)
        work.append(dict(made))

    assert work[0]["filters"] > 0 < work[0]["patterns"]
    assert work[0] == work[1]


def circle(*flows: str, rest: str = "") -> Configuration:
    """Clusters a to d, and flows between them that mark their copies."""
    clusters = "".join(f"  {alias}: {{bootstrap.servers: {alias}1:9092, region: us-east-1}}\n" for alias in "abcd")
    named = "".join(f"  {flow}\n" for flow in flows)
    keys = "replication.policy: identity, loop.prevention: header, emit.checkpoints.enabled: false"
    return load(
        f"clusters:\n{clusters}flows:\n{named}"
        f"defaults: {{{keys}, sync.topic.acls.enabled: false, sync.topic.configs.enabled: false{rest}}}\n",
        now=NOW,
    )


def test_flows_that_mark_their_copies_may_keep_names_in_both_directions() -> None:
    found = circle("a->b: {topics: [orders]}", "b->a: {topics: .*}", "b->d: {topics: .*}", "c->b: {topics: [audit]}")

    origins = {str(name): decode_settings(flow.function_settings_json()).origins for name, flow in found.flows.items()}

    assert origins == {"a->b": ("a", "b"), "b->a": ("a", "b"), "b->d": ("b", "d"), "c->b": ("b", "c")}


def test_the_clusters_of_a_circle_are_those_that_a_record_comes_back_from() -> None:
    found = circle("a->b: {topics: [orders]}", "b->c: {topics: .*}", "c->a: {topics: .*}", "c->d: {topics: .*}")

    assert {str(name): flow.origins for name, flow in found.flows.items()} == {
        "a->b": ("a", "b", "c"),
        "b->c": ("a", "b", "c"),
        "c->a": ("a", "b", "c"),
        "c->d": ("c", "d"),
    }


def test_groups_are_carried_by_the_maps_of_both_flows_of_a_pair() -> None:
    pair = circle("a->b: {topics: [orders]}", "b->a: {topics: [orders]}", rest=", emit.heartbeats.enabled: false")
    alone = circle("a->b: {topics: [orders]}", "b->a: {topics: [orders], enabled: false}")

    assert pair.flow("a->b").control_settings("f").counterpart_map == pair.flow("b->a").tables["offset_map"]
    assert alone.flow("a->b").control_settings("f").counterpart_map is None
    assert alone.flow("a->b").origins == ("a", "b"), "its copies are marked for the day on which the other begins"


def test_a_flow_that_marks_copies_marks_no_heartbeats() -> None:
    flow = circle("a->b: {topics: [orders]}").flow("a->b")
    settings = decode_settings(flow.function_settings_json())

    assert settings.origin_rule("heartbeats") is None
    assert settings.origin_rule("orders") is not None


RULES = """
clusters:
  a: {bootstrap.servers: a1:9092, schema.registry: {url: "https://a:8081/api", secret: registry, ca: root}}
  b: {bootstrap.servers: b1:9092, schema.registry: {type: glue}}
keys:
  pii: {secret: masks, version: 2}
  cards: {kms.key.arn: "arn:aws:kms:us-east-1:111122223333:key/1", data.keys: {"1": QUJD}}
  unused: {secret: others}
flows:
  a->b:
    topics: .*
    transforms:
      - topics: [customers, orders-.*]
        version: 3
        keep: headers.region != 'internal'
        tombstones: filter
        fields: {customer.email: {hmac: pii}, "items[*].note": {set: null}, card: {keep.last: 4}, "*": drop, id: pass}
        headers: {user-ip: drop}
        key: {hmac: pii}
        on.error: drop
      - {topics: .*, format: bytes, value: {encrypt: cards}}
  b->a: {topics: [bills], transforms: []}
defaults: {transforms: [{topics: bills, function: "masks:bills"}]}
"""


def test_functions_and_jobs_get_the_rules_of_a_flow_and_the_keys_that_these_name() -> None:
    flow = load(RULES, now=NOW).flow("a->b")
    settings = decode_settings(flow.function_settings_json())

    assert settings.transforms == flow.control_settings("f").transforms == flow.pull_settings(0).flow.transforms
    assert settings.transforms[0] == Rule(
        topics=("customers", "orders-.*"),
        version=3,
        keep="headers.region != 'internal'",
        tombstones="filter",
        fields={
            "customer.email": Mask(hmac="pii"),
            "items[*].note": Mask(set=None),
            "card": Mask(keep_last=4),
            "*": "drop",
            "id": "pass",
        },
        headers={"user-ip": "drop"},
        key=Mask(hmac="pii"),
        on_error="drop",
    )
    assert settings.keys == {
        "cards": KeySettings(kms_key_arn="arn:aws:kms:us-east-1:111122223333:key/1", data_keys={"1": "QUJD"}),
        "pii": KeySettings(secret="masks", version=2),  # noqa: S106 -- a secret's name
    }
    assert settings.schema_registry == SchemaRegistry(url="https://a:8081/api", secret="registry", ca="root")  # noqa: S106 -- same


def test_a_flows_rules_replace_those_of_the_defaults() -> None:
    without = load(RULES, now=NOW).flow("b->a").all_settings()
    assert (without.transforms, without.schema_registry) == ((), None)
    inherited = load(RULES.replace(", transforms: []", ""), now=NOW).flow("b->a").all_settings()
    assert inherited.schema_registry == SchemaRegistry(type="glue")
    assert inherited.transforms == (Rule(topics=("bills",), function="masks:bills"),)


@pytest.mark.parametrize(
    ("topic", "entry"),
    [("customers", 0), ("orders-eu", 0), ("orders", 1)]
    + [(topic, None) for topic in ("heartbeats", "c.heartbeats", "c.checkpoints.internal", "__consumer_offsets")],
)
def test_the_first_entry_that_matches_a_topic_is_its_rule_and_our_own_topics_have_none(
    topic: str, entry: int | None
) -> None:
    settings = decode_settings(load(RULES, now=NOW).flow("a->b").function_settings_json())

    assert settings.rule_of(topic) == (None if entry is None else settings.transforms[entry])


def test_what_reads_records_of_a_flow_with_rules_runs_at_the_source() -> None:
    """Records as they are never arrive in the target's region."""
    own, rules = "bootstrap.servers: a1:9092, region: us-east-1", "transforms: [{topics: orders, fields: {a: drop}}]"
    there = configuration("topics: [orders], trigger: schedule", source=own).flow("a->b")
    here = configuration(f"topics: [orders], trigger: schedule, {rules}", source=own).flow("a->b")

    assert {there.home.alias, there.pull_home.alias, there.jobs_home.alias} == {"b"}
    assert {here.home.alias, here.pull_home.alias, here.jobs_home.alias} == {"a"}
    forced = "topics: [orders], function: {run.in: source}"
    assert configuration(forced, source=own).flow("a->b").standby is not None
    assert here.standby is None
