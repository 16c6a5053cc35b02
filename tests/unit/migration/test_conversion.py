"""What each key of MirrorMaker 2 becomes, and that none is lost in silence."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.validation import validated
from mirrorless.config import Configuration, InvalidConfiguration, load
from mirrorless.errors import ConfigurationError, MirrorlessError
from mirrorless.migration.answers import Conversion
from mirrorless.migration.conversion import configuration_text, conversion_of
from mirrorless.migration.reading import read_mirrors
from tests.support.mirror_files import (
    BOTH_WAYS,
    CONNECTORS,
    ENDS,
    JAAS,
    MIRROR,
    PASSWORD,
    REPLICATOR,
    V1,
    V1BETA2,
    resource,
)
from tests.support.yaml_text import load_yaml


def convert(*files: str) -> Conversion:
    return conversion_of(*read_mirrors({f"file-{number}": text.encode() for number, text in enumerate(files)}))


def text_of(*files: str) -> str:
    return configuration_text(convert(*files))


def loaded(text: str) -> Configuration:
    """The configuration with its blanks filled in."""
    text = re.sub(r"region:$", "region: eu-west-1", text, flags=re.MULTILINE)
    return load(re.sub(r"secret:$", "secret: of-kafka", text, flags=re.MULTILINE))


BASE = "clusters = A, B\nA.bootstrap.servers = a1:9092\nB.bootstrap.servers = b1:9092, b2:9092\nA->B.enabled = true\n"

FLOW = ("flows", "a->b")
BECOMES: Mapping[str, tuple[str, tuple[str, ...], Any]] = {
    "topics for one mirror": ("A->B.topics = orders, pay.*", (*FLOW, "topics"), ["orders", "pay.*"]),
    "topics for all": ("topics = orders", (*FLOW, "topics"), ["orders"]),
    "all topics where none are named": ("", (*FLOW, "topics"), [".*"]),
    "a pattern that only Java reads": ("topics = \\\\p{Upper}+,x", (*FLOW, "topics"), ["[A-Z]+", "x"]),
    "quotes that match nothing": ('topics.exclude = "beats,.*x"', (*FLOW, "topics.exclude"), []),
    "an old name": ("topics.blacklist = tmp.*", (*FLOW, "topics.exclude"), ["tmp.*"]),
    "an old name beside the new one": ("groups.blacklist = x\ngroups.exclude = y", (*FLOW, "groups.exclude"), ["y"]),
    "a number": ("A->B.replication.factor = 3", (*FLOW, "replication.factor"), 3),
    "milliseconds for seconds": (
        "refresh.topics.interval.seconds = 600000",
        (*FLOW, "refresh.topics.interval.seconds"),
        86_400,
    ),
    "capitals in a truth value": ("sync.topic.acls.enabled = False", (*FLOW, "sync.topic.acls.enabled"), False),
    "discovery that patterns need": ("refresh.topics.enabled = false", (*FLOW, "refresh.topics.enabled"), True),
    "no discovery of names": (
        "topics = orders\nrefresh.topics.enabled = false",
        (*FLOW, "refresh.topics.enabled"),
        False,
    ),
    "offsets without checkpoints": (
        "emit.checkpoints.enabled = false\nsync.group.offsets.enabled = true",
        (*FLOW, "sync.group.offsets.enabled"),
        False,
    ),
    "a start at the end": ("A.consumer.auto.offset.reset = latest", (*FLOW, "start"), "latest"),
    "a start for one mirror": ("A->B.consumer.auto.offset.reset = latest", (*FLOW, "start"), "latest"),
    "a separator": ("replication.policy.separator = _", (*FLOW, "replication.policy.separator"), "_"),
    "no separator behind an alias": ("replication.policy.separator =", (*FLOW, "replication.policy.separator"), None),
    "heartbeats that the source gets none of": (
        "B->A.emit.heartbeats.enabled = false",
        (*FLOW, "emit.heartbeats.source.enabled"),
        False,
    ),
    "a mirror that is turned off": ("B->A.enabled = false\nB->A.topics = x", ("flows", "b->a", "enabled"), False),
    "an alias with capitals": ("", ("clusters", "a", "topic.prefix"), "A"),
    "an alias that a key names": ("A->B.source.cluster.alias = Old_1", ("clusters", "a", "topic.prefix"), "Old_1"),
    "brokers": ("", ("clusters", "b", "bootstrap.servers"), ["b1:9092", "b2:9092"]),
    "the producer of a cluster": ("B.producer.linger.ms = 5", ("clusters", "b", "producer.linger.ms"), 5),
    "the producer of a mirror": (
        "A->B.producer.override.max.request.size = 2000",
        ("clusters", "b", "producer.message.max.bytes"),
        2_000,
    ),
    "the consumer of a cluster": (
        "A.consumer.fetch.max.wait.ms = 70",
        ("clusters", "a", "consumer.fetch.wait.max.ms"),
        70,
    ),
    "a region by the brokers' names": (
        "B.bootstrap.servers = b-1.x.c2.kafka.eu-west-1.amazonaws.com:9092",
        ("clusters", "b", "region"),
        "eu-west-1",
    ),
    "security of all clusters": ("security.protocol = SSL", ("clusters", "a", "authentication"), {"type": "tls"}),
    "a certificate": (
        "A.security.protocol = ssl\nA.ssl.keystore.location = /x.jks",
        ("clusters", "a", "authentication"),
        {"type": "mtls", "secret": None},
    ),
    "a password over TLS": (
        f"A.security.protocol = SASL_SSL\nA.sasl.mechanism = SCRAM-SHA-256\nA.sasl.jaas.config = {JAAS}",
        ("clusters", "a", "authentication"),
        {"type": "scram", "mechanism": "SCRAM-SHA-256", "secret": None},
    ),
    "IAM by tokens": (
        "B.sasl.login.callback.handler.class = software.amazon.msk.auth.iam.Handler\nB.security.protocol = SASL_SSL",
        ("clusters", "b", "authentication"),
        {"type": "iam"},
    ),
    "credentials of the consumer alone": (
        "A.security.protocol = SASL_SSL\nA->B.source.consumer.sasl.mechanism = PLAIN",
        ("clusters", "a", "authentication"),
        {"type": "plain", "secret": None},
    ),
    "Kerberos": ("A.security.protocol = SASL_SSL", ("clusters", "a", "authentication"), {"type": None}),
}
"""By what it is about: lines beside `BASE`, and a value of the document."""


@pytest.mark.parametrize(("lines", "path", "value"), BECOMES.values(), ids=[each.replace(" ", "-") for each in BECOMES])
def test_a_key_means_here_what_it_meant_there(lines: str, path: tuple[str, ...], value: Any) -> None:
    made = convert(BASE + lines)
    document = load_yaml(configuration_text(made))
    for step in path:
        document = document[step]
    last = re.split(r" *= *", (BASE + lines).strip().splitlines()[-1])[0]

    assert document == value
    assert {answer.outcome for each, answer in made.answers.items() if each.key == last} <= {"kept", "blank"}


@pytest.mark.parametrize(
    ("lines", "key"),
    [
        ("emit.heartbeats.enabled = false", "emit.heartbeats.source.enabled"),
        ("B->A.enabled = true\nB->A.emit.heartbeats.enabled = true", "emit.heartbeats.source.enabled"),
        ("emit.checkpoints.enabled = false", "sync.group.offsets.enabled"),
        ("B.consumer.auto.offset.reset = latest", "start"),
        ("replication.policy.class = x.IdentityReplicationPolicy\nB->A.enabled = false", "loop.prevention"),
    ],
)
def test_a_flow_has_no_key_that_nothing_asks_for(lines: str, key: str) -> None:
    document = load_yaml(text_of(BASE + lines))

    assert key not in {**document["flows"]["a->b"], **document.get("defaults", {})}


ANSWERED: list[tuple[str, str, str, str]] = [
    ("A->B.tasks.max = 4", "A->B.tasks.max", "instead", "no tasks to size"),
    ("tasks.max = 4", "tasks.max", "instead", "no tasks to size"),
    ("offset.storage.topic = x", "offset.storage.topic", "instead", "no Connect workers"),
    ("A.status.storage.replication.factor = 1", "A.status.storage.replication.factor", "instead", "no Connect workers"),
    ("B.exactly.once.source.support = enabled", "B.exactly.once.source.support", "instead", "delivery: exactly_once"),
    ("offset-syncs.topic.location = target", "offset-syncs.topic.location", "instead", "are on the target"),
    ("key.converter = x.ByteArrayConverter", "key.converter", "instead", "never converted"),
    ("value.converter = x.StringConverter", "value.converter", "instead", "other bytes of values (texts such as"),
    ("A->B.value.converter = x.AvroConverter", "A->B.value.converter", "instead", "AvroConverter made other bytes"),
    ("refresh.groups.enabled = true", "refresh.groups.enabled", "instead", "listed anew"),
    ("replication.factor = two", "replication.factor", "instead", "is no whole number: MirrorMaker does not start"),
    ("A.consumer.isolation.level = x", "A.consumer.isolation.level", "instead", "aborted records are never"),
    ("B.producer.buffer.memory = 1", "B.producer.buffer.memory", "instead", "Java's clients"),
    (f"A.sasl.jaas.config = {JAAS}", "A.sasl.jaas.config", "ignored", "without encryption and without credentials"),
    ("B.security.protocol = SSL\nB.ssl.truststore.location = x", "B.ssl.truststore.location", "instead", "by `ca`"),
    ("topics = xx\nA->B.topics = yy", "topics", "ignored", "a value of its own"),
    ("topics.whitelist = x", "topics.whitelist", "ignored", "no such key at the top"),
    ("max.tasks = 1", "max.tasks", "ignored", "no such key at the top"),
    ('"topics" = x', '"topics"', "ignored", "no such key at the top"),
    ("A->C.topics = x", "A->C.topics", "ignored", "no `A->C` between"),
    ("A->B.max.poll.records = 5", "A->B.max.poll.records", "ignored", "no connector reads it"),
    ("A.max.poll.records = 5", "A.max.poll.records", "ignored", "only addresses and security"),
    ("A->B.producer.linger.ms = 5", "A->B.producer.linger.ms", "ignored", "clients of MirrorMaker's own topics"),
    ("A.producer.linger.ms = 5", "A.producer.linger.ms", "ignored", "clients of MirrorMaker's own topics"),
    ("B.producer.override.acks = 1", "B.producer.override.acks", "ignored", "belongs to connectors"),
    (f"B.sasl.jaas.config = {JAAS}", "B.sasl.jaas.config", "ignored", "without encryption and without credentials"),
    ("B.consumer.auto.offset.reset = latest", "B.consumer.auto.offset.reset", "instead", "write `start` at the flow"),
    (
        "B.consumer.max.poll.records = 5",
        "B.consumer.max.poll.records",
        "ignored",
        "clients of MirrorMaker's own topics",
    ),
    (
        "B.security.protocol = SASL_SSL\nB.sasl.mechanism = PLAIN\nB.sasl.login.class = x",
        "B.sasl.login.class",
        "instead",
        "write `authentication: {type: …}`",
    ),
    (
        "A.security.protocol = SASL_SSL\nA.sasl.mechanism = PLAIN\nA.consumer.sasl.mechanism = GSSAPI",
        "A.consumer.sasl.mechanism",
        "instead",
        "authenticate alike",
    ),
    ("A.sasl.mechanism = PLAIN", "A.sasl.mechanism", "ignored", "without encryption and without credentials"),
    ("A->B.consumer.override.x = 1", "A->B.consumer.override.x", "ignored", "without `override`"),
]
"""Lines beside `BASE`, one of their keys, what becomes of it, and words of why."""


@pytest.mark.parametrize(("lines", "key", "outcome", "why"), ANSWERED)
def test_a_key_without_a_counterpart_has_a_comment_that_says_what_there_is_instead(
    lines: str, key: str, outcome: str, why: str
) -> None:
    made = convert(BASE + lines)
    (answer,) = [answer for each, answer in made.answers.items() if each.key == key]
    text = configuration_text(made)

    assert answer.outcome == outcome
    assert why in answer.why
    assert re.search(rf"^# {{5}}{re.escape(key)}( =|$)", text, re.MULTILINE)
    assert " ".join(answer.why.split()[:6]) in text
    loaded(text)


@pytest.mark.parametrize(
    ("policy", "separator", "alias", "remote"),
    [
        (None, None, None, "A.orders"),
        ("org.apache.kafka.connect.mirror.DefaultReplicationPolicy", "_", None, "A_orders"),
        ("org.apache.kafka.connect.mirror.IdentityReplicationPolicy", None, None, "orders"),
        ("io.strimzi.kafka.connect.mirror.IdentityReplicationPolicy", None, None, "orders"),
        ("com.amazonaws.kafka.samples.CustomMM2ReplicationPolicy", "", None, "orders"),
        ("com.kafka.mirror.PrefixlessReplicationPolicy", None, None, "orders"),
        (None, "", "", "orders"),
        (None, None, "x_1", "x_1.orders"),
    ],
)
def test_remote_topics_keep_the_names_that_mirrormaker_gave_them(
    policy: str | None, separator: str | None, alias: str | None, remote: str
) -> None:
    """As Kafka 4.1.1's own classes name them, but for those that are not Kafka's."""
    keys = {"policy.class": policy, "policy.separator": separator}
    lines = [f"replication.{key} = {value}" for key, value in keys.items() if value is not None]
    lines += [f"source.cluster.alias = {alias}"] if alias is not None else []
    flow = loaded(text_of(BASE + "\n".join(lines))).flow("a->b")

    assert flow.remote_topic("orders") == remote
    assert flow.remote_topic("heartbeats") == f"{alias or 'A'}{separator or '.'}heartbeats"


# Whole files

SECRETS = {"clusters.{}.authentication.secret"}
PLACE = {"clusters.{}.region", "clusters.{}.account"}
FILES: Mapping[str, tuple[tuple[str, ...], set[str], int]] = {
    "both ways": (
        (BOTH_WAYS,),
        {each.format(end) for end in ("north-1", "south") for each in (*PLACE, *SECRETS)},
        2,
    ),
    "connectors": (
        tuple(map(json.dumps, CONNECTORS)),
        {"clusters.hq.region", *(each.format("edge") for each in (*PLACE, *SECRETS))},
        1,
    ),
    "a Connect cluster": (
        (json.dumps({each["name"]: {"info": each} for each in (*CONNECTORS, {"name": "other", "config": {}})}),),
        {"clusters.hq.region", *(each.format("edge") for each in (*PLACE, *SECRETS))},
        1,
    ),
    "Strimzi's v1": (
        (f"kind: Secret\n---\n{V1}",),
        {"clusters.oslo.authentication.secret", *(each.format("rome") for each in (*PLACE, *SECRETS))},
        1,
    ),
    "Strimzi's v1beta2": (
        (V1BETA2,),
        {"clusters.oslo.authentication.secret", *(each.format("rome") for each in (*PLACE, *SECRETS))},
        1,
    ),
    "Replicator": (
        (REPLICATOR,),
        {"clusters.old.authentication.secret", *(each.format("target") for each in PLACE)},
        1,
    ),
}
"""Files, the fields that are left to the operator, and the number of notes."""


SHOWN = re.compile(r"^# {5}(?:\S+?(?: mm2-\w+)?: )?(\S+)(?: = .*)?$", re.MULTILINE)
HEADS = {"Secrets, whose": "blank", "Without a counterpart": "instead", "MirrorMaker ignored": "ignored"}


def parts(text: str) -> Iterator[tuple[str, str]]:
    """The comments at the end of a configuration, by what they say of their keys."""
    for part in re.split(r"\n\n(?=# [SWM])", text)[1:]:
        yield next(outcome for head, outcome in HEADS.items() if part.startswith(f"# {head}")), part


def keys_in(text: str) -> set[str]:
    """The keys of a file, read in another way than ours."""
    if text.startswith("{"):
        found = json.loads(text)
        several = [each["info"] for each in found.values()] if "name" not in found else [found]
        return {key for each in several for key in each["config"]}
    if "kind: KafkaMirrorMaker2" in text:
        return set(paths(load_yaml(text.rpartition("---")[2])))
    lines = re.findall(r"^(?!#)(\S+?) *[=:]", text, re.MULTILINE)
    return set(lines)


def paths(data: Any, at: str = "") -> Iterator[str]:
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    below = [
        paths(value, f"{at}[{key}]" if isinstance(data, list) else f"{at}.{key}".strip(".")) for key, value in items
    ]
    yield from (each for several in below for each in several) if below else [at]


@pytest.mark.parametrize(("files", "blanks", "notes"), FILES.values(), ids=[each.replace(" ", "-") for each in FILES])
def test_no_key_of_a_file_is_lost_in_silence_and_no_secret_is_shown(
    files: tuple[str, ...], blanks: set[str], notes: int
) -> None:
    made = convert(*files)
    text = configuration_text(made)
    outcomes = sorted((answer.outcome, each.key) for each, answer in made.answers.items())
    shown = sorted((head, key) for head, part in parts(text) for key in SHOWN.findall(part))

    assert shown == [each for each in outcomes if each[0] != "kept"]
    assert {key for _, key in outcomes} == set().union(*map(keys_in, files))
    assert len(made.given) == len(made.answers)
    assert PASSWORD not in "\n".join([text, *made.notes, *(each.why for each in made.answers.values())])
    with pytest.raises(InvalidConfiguration) as caught:
        validated(text)
    assert {problem.where for problem in caught.value.problems} == blanks
    assert len(made.notes) == notes


def test_both_directions_that_keep_names_mark_their_copies_and_one_of_them_copies_configs() -> None:
    document = load_yaml(text_of(BOTH_WAYS))
    configuration = loaded(text_of(BOTH_WAYS))

    assert document["defaults"]["loop.prevention"] == "header"
    assert document["flows"]["north-1->south"] == {}
    assert document["flows"]["south->north-1"] == {
        "sync.topic.configs.enabled": False,
        "sync.topic.acls.enabled": False,
    }
    assert configuration.flow("south->north-1").policy.checkpoints_topic("south") == "South.checkpoints.internal"
    assert any("in a circle" in note for note in convert(BOTH_WAYS).notes)
    apart = BOTH_WAYS.replace("north_1.topics = events-.*", "north_1.topics = bills").replace(
        "topics = events-.*", "topics = clicks"
    )
    assert "loop.prevention" not in text_of(apart)
    assert not loaded(text_of(apart)).flow("north-1->south").origins
    for topics in ("bill.*", "clicks"):
        assert "loop.prevention" in text_of(apart.replace("bills", topics))


def test_what_the_operator_must_decide_is_said_above_it() -> None:
    text = text_of(BASE + "A.security.protocol = SASL_SSL\nreplication.policy.class = org.example.Ours")

    assert "# to fill in: the brokers must offer one of the types that there are here\n      type:\n" in text
    assert "whichever is nearer to `org.example.Ours`\n    replication.policy:\n" in text


def test_each_connector_decides_what_it_reads_and_what_differs_is_said() -> None:
    source, checkpoint, heartbeat = CONNECTORS
    document = load_yaml(text_of(*map(json.dumps, CONNECTORS)))["flows"]["hq->edge"]

    assert (document["topics"], document["groups"], document["sync.group.offsets.enabled"]) == (
        ["clicks"],
        ["shop"],
        True,
    )
    assert "emit.checkpoints.enabled" not in document
    assert "refresh.topics.interval.seconds" not in document
    assert document["emit.heartbeats.source.enabled"] is False

    whole = [each | {"config": each["config"] | {"header.converter": "x.ByteArrayConverter"}} for each in CONNECTORS]
    assert [len(convert(*map(json.dumps, each)).notes) for each in (CONNECTORS, whole)] == [1, 0]

    alone = load_yaml(text_of(json.dumps(source)))["flows"]["hq->edge"]
    assert (alone["emit.checkpoints.enabled"], alone["emit.heartbeats.enabled"]) == (False, False)
    assert "no MirrorSourceConnector" in convert(json.dumps(checkpoint), json.dumps(heartbeat)).notes[0]

    other = checkpoint | {"config": checkpoint["config"] | {"target.cluster.bootstrap.servers": "x:1"}}
    del other["config"]["replication.policy.class"]
    said = "\n".join(convert(json.dumps(source), json.dumps(other)).notes)
    assert "edge: `bootstrap.servers` differs between files: that of file-0 is taken" in said
    assert "one connector lacks the `replication.policy.class` of another" in said


def test_a_resource_of_strimzi_is_what_its_operator_makes_of_it() -> None:
    for text, beats in ((V1, False), (V1BETA2, True)):
        document = load_yaml(text_of(text))
        flow, rome = document["flows"]["oslo->rome"], document["clusters"]["rome"]

        assert (flow["topics"], flow["groups"], flow["refresh.topics.interval.seconds"]) == (
            ["a.*", "bills"],
            ["shop"],
            86_400,
        )
        assert ("emit.heartbeats.enabled" not in flow) is beats
        assert document["clusters"]["oslo"]["authentication"] == {"type": "scram", "secret": None}
        assert (rome["topic.prefix"], rome["authentication"]) == ("Rome", {"type": "mtls", "secret": None})
        assert rome["producer.compression.type"] == "zstd"
    tls, iam = ({"alias": "Rome", "bootstrapServers": "r:1", "tls": {}}, {"sasl": True, "type": "custom"})
    for end, kind in (
        (tls, "tls"),
        (tls | {"authentication": iam | {"config": {"sasl.mechanism": "AWS_MSK_IAM"}}}, "iam"),
    ):
        text = resource("v1", {"target": end, "mirrors": [MIRROR | {"source": ENDS["a"]}]})
        assert load_yaml(text_of(text))["clusters"]["rome"]["authentication"] == {"type": kind}
    stopped = V1.replace('"tasksMax": 2', '"state": "stopped"')
    assert load_yaml(text_of(stopped))["flows"]["oslo->rome"]["enabled"] is False


@pytest.mark.parametrize(
    ("form", "remote"), [("${topic}", "bills"), ("eu.x_${topic}", "eu.x_bills"), ("${topic}.replica", None)]
)
def test_replicator_names_topics_by_a_form_of_its_own(form: str, remote: str | None) -> None:
    text = text_of(REPLICATOR.replace("old-\\${topic}", form))
    if remote is None:
        with pytest.raises(InvalidConfiguration, match=r"replication\.policy: None is not possible"):
            loaded(text)
    else:
        (flow,) = loaded(text).enabled_flows
        assert flow.remote_topic("bills") == remote


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("replication_info_list {\n}\n", "no configuration of MirrorMaker 2"),
        ("", "no configuration of MirrorMaker 2"),
        ("{", "this is not JSON"),
        ("[" * 100_000, "this is not JSON: maximum recursion depth"),
        ("[3]", "this is no connector"),
        ('{"connector.class": "Jdbc"}', "there is no mirror in it"),
        ("clusters = A", "there is no mirror in it"),
        ("kind: KafkaMirrorMaker2", "there is no mirror in it"),
        (
            json.dumps(CONNECTORS[0]).replace('"edge"', '"hq"'),
            "'hq' is source and target",
        ),
        ('{"connector.class": "MirrorSourceConnector", "target.cluster.alias": ""}', "'' is source and target"),
    ],
)
def test_what_describes_no_mirror_is_refused_by_its_name(text: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match="file-0") as caught:
        convert(text)
    assert words in str(caught.value)


PARTS = [
    "A",
    "B",
    "A->B",
    "source",
    "topics",
    "enabled",
    "clusters",
    ".",
    "_",
    "=",
    ":",
    "\\",
    " ",
    "\n",
    "#",
    ".*",
    "5",
]
WORDS = st.sampled_from(
    [*PARTS, "true", "producer", "consumer", "override", "linger.ms", "sasl.mechanism", "auto.offset"]
)


@given(text=st.lists(WORDS, max_size=30).map("".join))
def test_whatever_stands_in_a_file_each_key_is_answered_and_the_text_is_yaml(text: str) -> None:
    try:
        made = convert(f"{BASE}{text}")
    except MirrorlessError:
        return

    assert {each.key for each in made.given} == {each.key for each in made.answers}
    assert set(load_yaml(configuration_text(made))) <= {"clusters", "defaults", "flows"}
