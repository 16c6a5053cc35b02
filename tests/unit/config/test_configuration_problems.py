"""Every problem of replication.yaml is reported by its field, with what to write instead."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mirrorless.config import InvalidConfiguration, Problem, load
from mirrorless.config.loading import examine
from mirrorless.config.messages import AUTHENTICATIONS, ELSEWHERE, SECTIONS, keys_of
from mirrorless.errors import ConfigurationError
from tests.support.yaml_text import dump_yaml, load_yaml

NOW = datetime(2026, 6, 1, tzinfo=UTC)

CLUSTERS = """
clusters:
  a: {bootstrap.servers: "a1:9092,a2:9092", region: us-east-1}
  b: {bootstrap.servers: [b1:9092], region: eu-west-1}
  c: {bootstrap.servers: [c1:9092]}
"""
FLOW = "a->b: {topics: [orders]}"


def document(*flows: str, clusters: str = CLUSTERS, rest: str = "") -> str:
    return "\n".join([textwrap.dedent(clusters), "flows:", *(f"  {flow}" for flow in flows or (FLOW,)), rest, ""])


def cluster(fields: str, *, flow: str = "topics: [orders]", target: str = "bootstrap.servers: b1:9092") -> str:
    clusters = f"clusters:\n  a: {{{fields}}}\n  b: {{{target}}}\n"
    return document(f"a->b: {{{flow}}}", clusters=clusters)


def test_an_entry_of_the_defaults_must_decide_something_in_one_flow() -> None:
    flows = ("a->b: {topics: [orders]}", "a->c: {topics: [bills]}")

    load(document(*flows, rest="defaults: {trigger.overrides: {orders: schedule, bills: schedule}}"), now=NOW)
    (problem,) = problems(document(*flows, rest="defaults: {trigger.overrides: {pay: schedule}}"))

    assert problem.where == "defaults.trigger.overrides.pay"


def problems(text: str) -> tuple[Problem, ...]:
    with pytest.raises(InvalidConfiguration) as caught:
        load(text, now=NOW)
    return caught.value.problems


ARN = "arn:aws:kafka:us-east-1:111122223333:cluster/a/1"
MSK = f"bootstrap.servers: a1:19096, msk.cluster.arn: '{ARN}'"
"""By a port that MSK has for nothing."""
SERVERLESS = f"bootstrap.servers: a1:9098, msk.cluster.arn: '{ARN}-s1', authentication: {{type: iam}}"
AT_B = "bootstrap.servers: b1:9092, region: us-east-1"
CONNECTED = f"msk.cluster.arn: '{ARN.replace('cluster/a/1', 'vpc-connection/444455556666/a/1')}', "
CONNECTED += "authentication: {type: iam}"
KEY = "secret.kms.key.arn: 'arn:aws:kms:us-east-1:111122223333:key/1'"
AT_MSK_BY_SCRAM = f"{MSK}, authentication: {{type: scram, secret: AmazonMSK_x, {KEY}}}"
AT_MSK = "arn:aws:secretsmanager:us-east-1:111122223333:secret:AmazonMSK_x-AbCdEf"
AT_HOME = "arn:aws:secretsmanager:us-east-1:111122223333:secret:kafka-AbCdEf"
NETWORK = "vpc: {subnets: [subnet-1], security.groups: [sg-1]}"
AT_SOURCE = "topics: [orders], function: {run.in: source}"
OPENED = "kms.key.arn: 'arn:aws:kms:us-east-1:111122223333:key/1', data.keys: {'1': QUJD}"
KEPT_IN_EUROPE = "arn:aws:secretsmanager:eu-west-1:111122223333:secret:kafka-AbCdEf"

PAIR = ("a->b: topics: [orders]", "b->a: topics: [orders]")
NO_GROUPS = "emit.checkpoints.enabled: false"
MARKED = "defaults: {replication.policy: identity, loop.prevention: header, "
IN_CIRCLES = MARKED + "sync.topic.acls.enabled: false, sync.topic.configs.enabled: false}"


def last_key(keys: str) -> str:
    """The place of the last key of a section's text, in the sections in which it stands."""
    at, path = load_yaml(f"{{{keys}}}"), list[str]()
    while isinstance(at, dict) and at:
        key, at = list(at.items())[-1]
        path.append(str(key))
    return ".".join(path)


Case = tuple[str, str, str]
"""A text, the field of its problem, and what its hint has. The field is the last key, unless another place is named."""


def flow(keys: str, hint: str, at: str = "") -> Case:
    text = keys if keys.startswith("topics:") else f"topics: [orders], {keys}"
    return document(f"a->b: {{{text}}}"), f"flows.a->b.{at or last_key(keys)}", hint


def source(keys: str, hint: str, at: str = "", **others: str) -> Case:
    text = keys if "bootstrap.servers" in keys else f"bootstrap.servers: a1:9092, {keys}"
    return cluster(text, **others), f"clusters.a.{at or last_key(keys)}", hint


def defaults(keys: str, hint: str, at: str = "") -> Case:
    return document(rest=f"defaults: {{{keys}}}"), f"defaults.{at or last_key(keys)}", hint


def deployment(keys: str, hint: str, at: str = "") -> Case:
    return document(rest=f"deployment: {{{keys}}}"), f"deployment.{at or last_key(keys)}", hint


def flows(named: Sequence[str], where: str, hint: str, rest: str = "", clusters: str = CLUSTERS) -> Case:
    """Of several flows, each as `a->b: keys`."""
    text = document(
        *(f"{name}: {{{keys}}}" for name, _, keys in (each.partition(": ") for each in named)),
        clusters=clusters,
        rest=rest,
    )
    return text, where, hint


def rule(keys: str, hint: str, at: str) -> Case:
    text, where, _ = flow(f"topics: [orders], transforms: [{{{keys}}}]", hint, f"transforms[0].{at}")
    return f"{text}\nkeys: {{pii: {{secret: masks}}}}\n", where, hint


ORDERS = "topics: [orders]"
IDENTICAL = f"{ORDERS}, replication.policy: identity"
IDENTITY = "defaults: {replication.policy: identity}"
MARK_THEM = "write `loop.prevention: header` in each of these flows"
IN_ONE = "write `false` in all flows between these clusters but one"
US_EAST = CLUSTERS.replace("  a:", "  us-east:")
ACCOUNTS = """
clusters:
  a: {bootstrap.servers: "a1:9092", region: us-east-1, account: "111122223333"}
  b: {bootstrap.servers: "b1:9092", region: eu-west-1, account: "444455556666"}
"""

CASES = {
    # unknown keys
    "a misspelt key": flow("emit.hearbeats.enabled: true", "did you mean `emit.heartbeats.enabled`?"),
    "underscores for dots": flow("replication_factor: 3", "did you mean `replication.factor`?"),
    "a key in the wrong section": flow("batch.size: 3", "`batch.size` belongs to `mapping:` of a flow"),
    "a key cut into pieces": flow("emit: {heartbeats: {enabled: true}}", "`emit.heartbeats.enabled: …`", "emit"),
    "a key of a flow at a cluster": source(
        "emit.offset-syncs.enabled: true", "`emit.offset-syncs.enabled` belongs to a flow, or `defaults`"
    ),
    "a key of the deployment in a flow": flow("log.retention.days: 7", "`log.retention.days` belongs to `deployment`"),
    "a key of spark in the deployment": deployment(
        "maximum.vcpu: 8", "`maximum.vcpu` belongs to `spark:` of `deployment`"
    ),
    "a key of mm2 that has no counterpart": defaults("tasks.max: 4", "`mapping: {maximum.pollers: …}`"),
    "a key of Connect": defaults("offset.storage.topic: mm2-offsets", "there are no Connect workers"),
    "a key of Connect that begins like others": defaults("errors.tolerance: all", "stops its lane"),
    "a connector's key of a cluster": defaults("source.cluster.alias: a", "write the alias under `clusters`"),
    "a converter's own key": defaults("value.converter.schemas.enable: false", "never converted"),
    "a client's key of a connector": defaults("producer.override.acks: all", "write `producer.…` at the target"),
    "a client option that breaks exactly once": source("producer.acks: 1", "exactly once depends on `all`"),
    "a password in the file": source("sasl.jaas.config: x", "a password has no place in this file"),
    "an unknown section": (document(rest="flow: {}"), "flow", "did you mean `flows`?"),
    "the way of old with what no event can carry": flow(
        "oversize: copy",
        "write `trigger.overrides: {TOPIC: schedule}` for topics with such records",
        "oversize",
    ),
    "too little memory to look for what no event can carry": flow(
        "oversize: stop, function: {memory.mb: 128}", "write 256 or more, or `oversize: ledger`"
    ),
    "too little time to look for what no event can carry": flow(
        "oversize: stop, function: {timeout.seconds: 20}", "write 30 or more, or `oversize: ledger`"
    ),
    # the document
    "a key written twice": flows((PAIR[0], "a->b: topics: [payments]"), "flows.a->b", "keep one of the two"),
    "a merge key": defaults("<<: {delivery: at_least_once}", "remove it", "<<"),
    "a tag": flow("start: !!str latest", "quotes make text"),
    "sections in sections": (document(rest=f"defaults: {'{a: ' * 20}1{'}' * 20}"), "defaults" + ".a" * 11, "remove"),
    "no yaml at all": ("flows: [\n", "", "look at the indentation"),
    "a section that contains itself": (
        document(rest="defaults: &x {mapping: *x}"),
        "defaults.mapping" + ".mapping" * 10,
        "leads back",
    ),
    "brackets without end": ("[" * 5_000 + "\n", "", "brackets that are never closed"),
    "only text": ("hello\nworld\n", "", "write keys below it"),
    "no clusters": ("flows:\n  a->b: {topics: [orders]}\n", "clusters", "add `clusters: …`"),
    "an empty list of clusters": (
        "clusters: {}\nflows:\n  a->b: {topics: [orders]}\n",
        "clusters",
        "describe the source and the target",
    ),
    "no flows": (f"{CLUSTERS}\nflows: {{}}\n", "flows", "add a flow"),
    "an empty flow": (document("a->b:"), "flows.a->b", "write keys below it"),
    # names
    "an alias with capitals": flows(
        (f"A->b: {ORDERS}",), "clusters.A", "use a-z, 0-9 and hyphen", clusters=CLUSTERS.replace("  a:", "  A:")
    ),
    "a flow from an unknown cluster": flows(
        (f"us-aest->b: {ORDERS}",), "flows.us-aest->b", "did you mean `us-east`?", clusters=US_EAST
    ),
    "a flow to itself": (document("a->a: {topics: [orders]}"), "flows.a->a", "name two different clusters"),
    "no arrow": (document("a-b: {topics: [orders]}"), "flows.a-b", "for example `a->b`"),
    # types and ranges
    "a number in quotes": flow("mapping: {batch.size: '500'}", "write a whole number from 1 to 10,000, without quotes"),
    "a number that is too large": flow("mapping: {batch.size: 20000}", "write a whole number from 1 to 10,000"),
    "a fraction that is too large": flow("schedule: {window.seconds: 20}", "write a number from 0.1 to 15.0"),
    "a truth value in words": flow("enabled: yes", "write `true` or `false`"),
    "a truth value of yaml 1.1": flow("enabled: on", "write `true` or `false`"),
    "a value where a list belongs": deployment("kms.key.arns: mine", "write a list"),
    "a tag's value that aws does not take": deployment(
        "tags: {flow: a->b}", "use letters a-z, digits, spaces and `. _ : / = + - @`", "tags"
    ),
    "a tag without a name": deployment("tags: {'': x}", "write 1 to 128", "tags"),
    "a tag of aws's own": deployment("tags: {'aws:x': y}", "another prefix", "tags"),
    "an octal number": flow("mapping: {batch.size: 0o17}", "write a whole number from 1 to 10,000"),
    "a number with underscores": flow("mapping: {batch.size: 1_000}", "write a whole number from 1 to 10,000"),
    "an account without quotes": source("account: 111122223333", "put it in quotes: account: '111122223333'"),
    "a choice that does not exist": flow("delivery: exactly-once", "did you mean `exactly_once`?"),
    "a section where a value belongs": flow("mapping: provisioned", "write keys below it"),
    "no replica": flow("replication.factor: 0", "write 1 or more, or -1"),
    "a region that is none": source("region: Virginia", "like `us-east-1`"),
    # clusters
    "a cluster without brokers": (
        cluster("region: us-east-1"),
        "clusters.a.bootstrap.servers",
        "aws kafka get-bootstrap-brokers",
    ),
    "an empty list of brokers": source("bootstrap.servers: []", "write one broker or more"),
    "a broker without a port": source("bootstrap.servers: [a1]", "write `host:port`", "bootstrap.servers[0]"),
    "a broker twice": source("bootstrap.servers: [a1:1, a1:1]", "remove one of the two"),
    "eleven brokers": source(f"bootstrap.servers: [{', '.join(f'a{n}:9092' for n in range(11))}]", "remove some"),
    "authentication without a type": source(
        "authentication: {secret: x}",
        "add `type: …`, which is `plaintext`, `tls`, `plain`, `scram`, `oauthbearer`, `mtls` or `iam`",
        "authentication",
    ),
    "an unknown authentication": source(
        "authentication: {type: sasl}",
        "write `plaintext`, `tls`, `plain`, `scram`, `oauthbearer`, `mtls` or `iam`",
        "authentication",
    ),
    "scram without a secret": source(
        "authentication: {type: scram}",
        "add `secret: …`. Secrets Manager name or ARN of `username` and `password`",
        "authentication.secret",
    ),
    "mtls without a secret": source(
        "authentication: {type: mtls}", "`certificate` and `privateKey`", "authentication.secret"
    ),
    "plain without a secret": source(
        "authentication: {type: plain}", "`username` and `password`", "authentication.secret"
    ),
    "oauthbearer without a secret": source(
        "authentication: {type: oauthbearer}",
        "`oauthTokenEndpointUrl` (HTTPS), `oauthClientId` and `oauthClientSecret`",
        "authentication.secret",
    ),
    "a scope that no mapping takes": source(
        'authentication: {type: oauthbearer, secret: x, scope: "a,b"}', "letters, digits, spaces"
    ),
    "a password on msk": source(
        f"{MSK}, authentication: {{type: plain, secret: x}}", "write `scram`, `mtls` or `iam`", "authentication.type"
    ),
    "tokens on msk": source(
        f"{MSK}, authentication: {{type: oauthbearer, secret: x}}", "remove `msk.cluster.arn`", "authentication.type"
    ),
    "tokens in china": source(
        "region: cn-north-1, authentication: {type: oauthbearer, secret: x}",
        "write `plain`, `scram` or `mtls`",
        "authentication.type",
        flow=AT_SOURCE,
    ),
    "an authority of one's own for msk's tls": source(f"{MSK}, authentication: {{type: tls, ca: x}}", "remove it"),
    "tls that no mapping would use": source(
        f"region: us-east-1, {NETWORK}, authentication: {{type: tls}}",
        "add `ca: …`",
        "authentication.ca",
        flow=AT_SOURCE,
    ),
    "tls of an msk cluster that is read from afar": (
        document(
            "a->b: {topics: [orders], function: {run.in: target}}",
            clusters=f"""clusters:
  a: {{{MSK}, authentication: {{type: tls}}}}
  b: {{bootstrap.servers: b1:9092, region: eu-west-1, {NETWORK}}}
""",
        ),
        "clusters.a.authentication.ca",
        "write `function: {run.in: source}`",
    ),
    "tls without credentials, and without a vpc": source(
        "region: us-east-1, authentication: {type: tls, ca: x}",
        "add `vpc` to `a`",
        "authentication.type",
        flow=AT_SOURCE,
    ),
    "an authority in another region than its reader": source(
        f"bootstrap.servers: a1:1, region: us-east-1, {NETWORK}, authentication: {{type: tls, ca: '{KEPT_IN_EUROPE}'}}",
        "replicate it to us-east-1",
        flow=AT_SOURCE,
    ),
    "a secret for iam": source("region: us-east-1, authentication: {type: iam, secret: x}", "remove it"),
    "iam without a region": source("authentication: {type: iam}", "add `region: us-east-1`", "region"),
    "a port of msk for another authentication": source(
        f"{MSK.replace('19096', '9098')}, authentication: {{type: mtls, secret: x}}",
        "write port 9094",
        "bootstrap.servers[0]",
    ),
    "a public port of msk for another authentication, by its name": source(
        "bootstrap.servers: b-1-public.a.abc.c1.kafka.us-east-1.amazonaws.com:9196, region: us-east-1",
        "write port 9092",
        "bootstrap.servers[0]",
    ),
    "a port of ipv6 for another authentication": source(
        f"{MSK.replace('19096', '20096')}, authentication: {{type: iam}}", "write port 9098", "bootstrap.servers[0]"
    ),
    "replicas that serverless does not have": (
        cluster("bootstrap.servers: a1:9092, region: us-east-1", target=SERVERLESS),
        "flows.a->b.replication.factor",
        "write `replication.factor: -1`",
    ),
    "replicas of heartbeats that serverless does not have": (
        cluster(SERVERLESS, flow="topics: [orders], heartbeats.topic.replication.factor: 2", target=AT_B),
        "flows.a->b.heartbeats.topic.replication.factor",
        "write `heartbeats.topic.replication.factor: -1`",
    ),
    "serverless by a password": source(
        f"{SERVERLESS.partition(', authentication')[0].replace('9098', '9094')}, authentication: {{type: tls}}",
        "write `authentication: {type: iam}`",
        target=AT_B,
    ),
    "a port below those of a vpc connection": source(
        f"{CONNECTED}, bootstrap.servers: 'a1:14000,a2:14001,a3:14100'",
        "`BootstrapBrokerStringVpcConnectivity…`",
        "bootstrap.servers[0]",
    ),
    "a port above those of a vpc connection": source(
        f"{CONNECTED}, bootstrap.servers: 'a1:14001,a2:14100,a3:14101'",
        "name the cluster's ARN",
        "bootstrap.servers[2]",
    ),
    "a vpc connection without authentication": source(
        f"{CONNECTED.replace('iam', 'tls')}, bootstrap.servers: a1:14001",
        "write `iam`, `scram` or `mtls`",
        "authentication.type",
    ),
    "a region that is not the arn's": source(f"{MSK}, region: us-west-2", "write 'us-east-1'"),
    "a weak hash on msk": source(
        f"{MSK}, authentication: {{type: scram, secret: AmazonMSK_x, {KEY}, mechanism: SCRAM-SHA-256}}",
        "write `mechanism: SCRAM-SHA-512`",
    ),
    "a secret that msk does not take": source(
        f"{MSK}, authentication: {{type: scram, secret: kafka}}", "name a secret that does"
    ),
    "a secret whose name ends as an arn": source(
        "bootstrap.servers: a1:9096, region: us-east-1, authentication: {type: scram, secret: kafka-secret}",
        "give the secret another name, such as `kafka-secret-1`, or write its whole ARN",
        "authentication.secret",
        flow=AT_SOURCE,
    ),
    "an authority whose name ends as an arn": source(
        f"{AT_B.replace('b1', 'a1')}, {NETWORK}, authentication: {{type: tls, ca: kafka-ca.pem}}",
        "or write its whole ARN",
        "authentication.ca",
        flow=AT_SOURCE,
    ),
    "a secret's arn without its ending": source(
        f"{MSK}, authentication: {{type: scram, {KEY}, secret: '{AT_MSK.removesuffix('-AbCdEf')}'}}",
        "or the secret's name alone",
        "authentication.secret",
    ),
    "an arn of a registry's secret without its ending": source(
        f"schema.registry: {{url: 'https://r', secret: '{AT_HOME.removesuffix('-AbCdEf')}'}}",
        "or the secret's name alone",
        "schema.registry.secret",
    ),
    "a key's arn without its ending": (
        document(rest=f"keys: {{pii: {{secret: '{AT_HOME.removesuffix('-AbCdEf')}'}}}}"),
        "keys.pii.secret",
        "or the secret's name alone",
    ),
    "a secret of msk without its key": source(
        f"{MSK}, authentication: {{type: scram, secret: AmazonMSK_x}}",
        "add `secret.kms.key.arn: arn:aws:kms:…`",
        "authentication.secret.kms.key.arn",
    ),
    "one secret for clusters of msk in two regions": (
        cluster(AT_MSK_BY_SCRAM, target=AT_MSK_BY_SCRAM.replace("us-east-1", "eu-west-1")),
        "clusters.b.authentication.secret",
        "make a secret for each cluster, for example `AmazonMSK_x_b`",
    ),
    "a secret of msk without its key, by its arn": source(
        f"bootstrap.servers: a1:9096, authentication: {{type: scram, secret: '{AT_MSK}'}}",
        "a multi-region key",
        "authentication.secret.kms.key.arn",
    ),
    "an authority of one's own on msk": source(f"{MSK}, authentication: {{type: mtls, secret: x, ca: y}}", "remove it"),
    "a secret in another region than its reader": source(
        f"bootstrap.servers: a1:1, region: us-east-1, authentication: {{type: scram, secret: '{KEPT_IN_EUROPE}'}}",
        "replicate it to us-east-1",
        flow=AT_SOURCE,
    ),
    "a network without security groups": source(
        "vpc: {subnets: [subnet-1]}", "add `security.groups: …`", "vpc.security.groups"
    ),
    # topics
    "no topics": (document("a->b: {delivery: exactly_once}"), "flows.a->b.topics", "add `topics: [orders]`"),
    "an invalid pattern": flow(
        "topics: [orders, 'pay[']", "put a backslash before a sign that means itself", "topics[1]"
    ),
    "a shell's star": flow("topics: ['*']", "write `.*` for anything", "topics[0]"),
    "an invalid exclusion": flow("topics.exclude: '('", "put a backslash", "topics.exclude[0]"),
    "an invalid group pattern": flow("groups: '+'", "put a backslash", "groups[0]"),
    "a topic of one letter": flow("topics: [o]", "rename the topic", "topics[0]"),
    # triggers and schedules
    "no trigger": flow("trigger: schedul", "`schedule`?"),
    "no trigger of an entry": flow("trigger.overrides: {orders: off}", "write `mapping` or `schedule`"),
    "an entry that is no pattern": flow("trigger.overrides: {'[': schedule}", "put a backslash", "trigger.overrides"),
    "an entry of another topic": flow(
        "topics: [orders, 'p.*'], trigger.overrides: {bills: schedule}", "add the topic to `topics`"
    ),
    "an entry that an earlier one covers": flow(
        "topics: [orders, 'p.*'], trigger.overrides: {'p.*': schedule, pay: mapping}", "write it above 'p.*'"
    ),
    "a pattern without a topic": (
        document(FLOW, rest="defaults: {trigger.overrides: {'b.*': schedule}}"),
        "defaults.trigger.overrides.b.*",
        "add such topics to `topics`",
    ),
    "schedules without a refresh": flow(
        "trigger: schedule, refresh.topics.enabled: false", "`refresh.topics.enabled: true`", "trigger"
    ),
    "half a minute": flow("schedule: {interval.seconds: 90}", "write 60 or 120"),
    "an interval of what is continuous": flow(
        "schedule: {interval.seconds: 60, continuous: true}", "`continuous: false`", "schedule.interval.seconds"
    ),
    "an interval of what the defaults make continuous": flows(
        (f"a->b: {ORDERS}, schedule: {{interval.seconds: 60}}",),
        "flows.a->b.schedule.interval.seconds",
        "remove it",
        "defaults: {schedule: {continuous: true}}",
    ),
    "a secret where scheduled topics are not read": source(
        f"bootstrap.servers: a1:9096, region: us-east-1, authentication: {{type: scram, secret: '{AT_HOME}'}}",
        "`schedule: {run.in: …}`",
        flow="topics: [orders], trigger: schedule, function: {run.in: source}",
        target="bootstrap.servers: b1:9092, region: eu-west-1",
    ),
    "a topic with a blank": flow("topics: [my orders]", "use letters, digits", "topics[0]"),
    "a topic that is too long": flow(f"topics: [{'x' * 250}]", "rename it", "topics[0]"),
    "a remote topic that is too long": flow(f"topics: [{'x' * 248}]", "shorten the source's alias", "topics[0]"),
    "a consumer group that is too long": flow(
        f"topics: [{'x' * 190}]", "schedule this topic by `trigger.overrides`", "topics[0]"
    ),
    "a topic twice": flow("topics: [orders, orders]", "remove one of the two"),
    "an internal topic": flow("topics: [__consumer_offsets]", "remove it", "topics[0]"),
    "a topic that comes from the target": flow("topics: [b.orders]", "name the original, `orders`", "topics[0]"),
    "a topic that is excluded": flow("topics.exclude: [orders]", "change the exclusion", "topics[0]"),
    "a pattern without discovery": flow(
        "topics: ['orders-.*'], refresh.topics.enabled: false", "write `refresh.topics.enabled: true`", "topics[0]"
    ),
    "a separator that an alias contains": flows(
        (f"us-east->b: {ORDERS}, replication.policy.separator: '-'",),
        "flows.us-east->b.replication.policy.separator",
        "write a separator that no alias contains",
        clusters=US_EAST,
    ),
    "two clusters with the same names of topics": source("topic.prefix: b", "another alias", "topic.prefix"),
    "names of topics with two origins": source(
        "topic.prefix: east", "another separator", target=f"{AT_B}, topic.prefix: east.2"
    ),
    "a separator that no topic can have": flow("replication.policy.separator: '/'", "1 to 16 letters"),
    # flows together
    "identity both ways": flows(PAIR, "defaults.replication.policy", "name different topics", IDENTITY),
    "identity both ways by patterns": flows(
        ("a->b: topics: .*", "b->a: topics: .*"), "defaults.replication.policy", MARK_THEM, IDENTITY
    ),
    "identity round three clusters": flows(
        (
            f"a->b: {IDENTICAL}",
            f"b->c: {IDENTICAL.replace('ers]', 'ers, audit]')}",
            f"c->a: {IDENTICAL.replace('[orders]', '.*')}",
        ),
        "flows.c->a.replication.policy",
        MARK_THEM,
    ),
    "identity both ways, and one of them without the header": flows(
        (f"a->b: {ORDERS}, loop.prevention: header", PAIR[1]), "defaults.replication.policy", MARK_THEM, IDENTITY
    ),
    "a header that prefixed names do not need": flow("loop.prevention: header", "remove it"),
    "configs of topics copied both ways": flows(
        PAIR, "flows.b->a.sync.topic.configs.enabled", IN_ONE, MARKED + "sync.topic.acls.enabled: false}"
    ),
    "ACLs copied both ways": flows(
        PAIR, "flows.b->a.sync.topic.acls.enabled", IN_ONE, MARKED + "sync.topic.configs.enabled: false}"
    ),
    "duplicates in a circle": flows(
        (PAIR[0], f"b->a: {ORDERS}, delivery: at_least_once"),
        "flows.b->a.delivery",
        "write `delivery: exactly_once`",
        IN_CIRCLES,
    ),
    "groups round three clusters": flows(
        (f"a->b: {ORDERS}, {NO_GROUPS}", f"b->c: {ORDERS}", f"c->a: {ORDERS}, {NO_GROUPS}"),
        "flows.b->c.emit.checkpoints.enabled",
        "or use pairs",
        IN_CIRCLES,
    ),
    "groups between accounts": flows(
        (PAIR[0], f"b->a: {ORDERS}, {NO_GROUPS}"),
        "flows.a->b.emit.checkpoints.enabled",
        "write `emit.checkpoints.enabled: false`",
        IN_CIRCLES,
        ACCOUNTS,
    ),
    "two flows into one remote topic": flows(
        (f"a->c: {IDENTICAL}", f"b->c: {IDENTICAL}"), "flows.b->c.topics", "name different topics"
    ),
    "a prefixed and an identical name that meet": flows(
        (f"a->c: {ORDERS}", "b->c: topics: [a.orders], replication.policy: identity"),
        "flows.b->c.topics",
        "name different topics",
    ),
    # limits
    "a transaction longer than its function": flow("transaction.timeout.ms: 60000", "write less than 60,000"),
    "more pollers at least than at most": flow(
        "mapping: {minimum.pollers: 5, maximum.pollers: 4}", "write 1 to 4", "mapping.minimum.pollers"
    ),
    "pollers on demand": flow(
        "mapping: {mode: on-demand, minimum.pollers: 2}", "write `mode: provisioned`, or remove it"
    ),
    "partial batch response on demand": defaults(
        "mapping: {mode: on-demand, partial.batch.response: true}", "write `mode: provisioned`, or remove it"
    ),
    "a poller group that is too large": flows(
        (f"a->b: topics: [{', '.join(f't{n}' for n in range(30))}]",),
        "defaults.mapping.maximum.pollers",
        "write 66 or fewer",
        "defaults: {mapping: {poller.group.name: all, maximum.pollers: 100}}",
    ),
    "a poller group of too many mappings": flows(
        (f"a->b: topics: [{', '.join(f't{n}' for n in range(101))}]",),
        "defaults.mapping.poller.group.name",
        "leave it out, or use another `poller.group.name`",
        "defaults: {mapping: {poller.group.name: all, maximum.pollers: 1}}",
    ),
    "a poller group's name with a space": flow("mapping: {poller.group.name: my group}", "up to 128 letters"),
    "a retry limit": flow("mapping: {maximum.retry.attempts: 3}", "or records would be lost"),
    "a start without a time zone": flow("start: 2026-01-01T12:00:00", "write 2026-01-01T12:00:00Z for UTC"),
    "a start in the future": flow("start: 2026-06-02T00:00:00Z", "write a time that is past"),
    "a start in words": flow("start: beginning", "earliest, latest, backfill"),
    "group offsets without checkpoints": flow(
        "sync.group.offsets.enabled: true, emit.checkpoints.enabled: false",
        "write `emit.checkpoints.enabled: true`",
        "sync.group.offsets.enabled",
    ),
    # transforms
    "a misspelt key of a rule": rule("topics: orders, feilds: {a: drop}", "did you mean `fields`?", "feilds"),
    "a rule without topics": rule("version: 2", "add `topics: …`", "topics"),
    "a rule of no topics": rule("topics: []", "write a list", "topics"),
    "a format that there is not": rule("topics: orders, format: jason", "did you mean `json`?", "format"),
    "an action that there is not": rule("topics: orders, fields: {a.b: mask}", "write `drop` or `pass`", "fields.a.b"),
    "two kinds of mask": rule("topics: orders, headers: {ip: {hmac: pii, truncate: 3}}", "one of hmac", "headers.ip"),
    "no kind of mask": rule("topics: orders, key: {}", "one of hmac", "key"),
    "a kind of mask that there is not": rule("topics: orders, fields: {a: {hash: pii}}", "one of hmac", "fields.a"),
    "a length in words": rule("topics: orders, fields: {a: {keep.last: four}}", "`keep.last: 4`", "fields.a"),
    "a length below nothing": rule("topics: orders, fields: {a: {truncate: -1}}", "`truncate: 4`", "fields.a"),
    "a mask by no key": rule("topics: orders, value: {encrypt: 7}, format: bytes", "those under `keys`", "value"),
    "a function without its module": rule("topics: orders, function: mask", "`masks.customers:", "function"),
    "a misspelt key of a key": (document(rest="keys: {pii: {secrets: s}}"), "keys.pii.secrets", "mean `secret`?"),
    "a version of a key below one": (document(rest="keys: {pii: {secret: s, version: 0}}"), "keys.pii.version", "1 to"),
    "a path that is none": rule("topics: orders, fields: {'a..b': drop}", "", "fields.a..b"),
    "a condition that is none": rule("topics: orders, keep: 'value.a ='", "", "keep"),
    "fields of values that are bytes": rule("topics: orders, format: bytes, fields: {a: drop}", "", "format"),
    "a value that is no bytes": rule("topics: orders, value: {hmac: pii}", "add format: bytes", "value"),
    "a key of the record that is cut": rule("topics: orders, key: {keep.last: 4}", "use drop or hmac", "key"),
    "a key that there is not": rule("topics: orders, headers: {ip: {hmac: pi}}", "write one of pii", "headers.ip"),
    "a key of the record that there is not": rule("topics: orders, key: {hmac: pi}", "write one of pii", "key"),
    "a key without a place": (document(rest="keys: {pii: {version: 2}}"), "keys.pii", "write `secret: NAME` alone"),
    "a key in two places": (
        document(rest=f"keys: {{pii: {{secret: s, {OPENED}}}}}"),
        "keys.pii",
        "write `secret: NAME` alone",
    ),
    "data keys that nothing opens": (
        document(rest="keys: {pii: {secret: s, data.keys: {'1': QUJD}}}"),
        "keys.pii",
        "write `secret: NAME` alone",
    ),
    "a version without its data key": (
        document(rest=f"keys: {{pii: {{{OPENED}, version: 2}}}}"),
        "keys.pii.version",
        "add the data key",
    ),
    "a data key that is not what KMS gave": (
        document(rest=f"keys: {{pii: {{{OPENED.replace('QUJD', 'QUJ')}}}}}"),
        "keys.pii.data.keys.1",
        "write `'1': AQIDAH…`",
    ),
    "a key in the target's region": (
        document(
            "a->b: {topics: [orders], transforms: [{topics: orders, key: {hmac: pii}}]}",
            rest=f"keys: {{pii: {{{OPENED.replace('us-east-1', 'eu-west-1')}}}}}",
        ),
        "keys.pii.kms.key.arn",
        "name one in us-east-1",
    ),
    "a secret in the target's region": (
        document(
            "a->b: {topics: [orders], transforms: [{topics: orders, key: {hmac: pii}}]}",
            rest=f"keys: {{pii: {{secret: '{KEPT_IN_EUROPE}'}}}}",
        ),
        "keys.pii.secret",
        "a replicated secret",
    ),
    "a rule of a topic that the flow does not copy": rule("topics: bills", "add the topic to `topics`", "topics[0]"),
    "a rule of topics that the flow does not have": rule("topics: bill.*", "add such topics", "topics[0]"),
    "a rule behind one that matches all": flow(
        "topics: [orders], transforms: [{topics: .*}, {topics: [orders]}]",
        "write it above '.*'",
        "transforms[1].topics[0]",
    ),
    "a rule behind one of the same pattern": flow(
        "topics: .*, transforms: [{topics: [orders, b.*]}, {topics: b.*, version: 2}]",
        "write it above 'b.*'",
        "transforms[1].topics[0]",
    ),
    "a rule of heartbeats": flow(
        "topics: [orders, heartbeats], transforms: [{topics: [orders, heartbeats]}]",
        "name it in no rule",
        "transforms[0].topics[1]",
    ),
    "a rule of a topic whose name is that of heartbeats": flow(
        "topics: [orders, heartbeats, sensors.heartbeats], transforms: [{topics: .*}]",
        "where its records are others, rename the topic",
        "transforms[0].topics[0]",
    ),
    "rules of the defaults that no flow has topics for": defaults(
        "transforms: [{topics: bills}]", "add the topic", "transforms[0].topics[0]"
    ),
    "records that are masked behind the border": flow(
        "transforms: [{topics: orders}], function: {run.in: target}", "write `run.in: source`"
    ),
    "scheduled records that are masked behind the border": flow(
        "transforms: [{topics: orders}], trigger: schedule, schedule: {run.in: target}", "write `run.in: source`"
    ),
    "masked records on their way back": flow(
        "transforms: [{topics: orders}], replication.policy: identity, loop.prevention: header",
        "let no other flow bring these topics back",
    ),
    "rules for Avro without its schemas": rule("topics: orders, format: avro", "to the cluster `a`, or", "format"),
    "a registry without an address": source("schema.registry: {secret: s}", "add `url: https://…`", "schema.registry"),
    "a registry at no address": source("schema.registry: {url: 'a:8081'}", "https://registry", "schema.registry.url"),
    "a password in an address": source(
        "schema.registry: {url: 'https://me:secret@a:8081'}", "https://registry", "schema.registry.url"
    ),
    "a registry's password in the clear": source(
        "schema.registry: {url: 'http://a:8081', secret: s}", "write an https:// address", "schema.registry.url"
    ),
    "an address of Glue": source(
        "schema.registry: {type: glue, url: 'https://a:8081'}", "write `type: confluent`", "schema.registry.url"
    ),
    "a registry's secret in the target's region": source(
        f"region: us-east-1, schema.registry: {{url: 'https://a:8081', secret: '{KEPT_IN_EUROPE}'}}",
        "replicate it to us-east-1",
        "schema.registry.secret",
        flow="topics: [orders], transforms: [{topics: orders, format: avro}]",
    ),
    "rules that no environment variable holds": flow(
        f"transforms: [{{topics: orders, fields: {{{', '.join(f'a{n:0200}: drop' for n in range(15))}}}}}]",
        "name what stays by `pass`",
        "transforms",
    ),
    "settings that no environment variable holds": source(
        f"bootstrap.servers: [{', '.join(f'{chr(97 + n) * 290}:9092' for n in range(10))}]", "two or three are enough"
    ),
}


@pytest.mark.parametrize(("text", "field", "hint"), CASES.values(), ids=[name.replace(" ", "-") for name in CASES])
def test_a_mistake_is_named_by_its_field_with_what_to_write_instead(text: str, field: str, hint: str) -> None:
    found = problems(text)

    assert [problem.where for problem in found] == [field]
    assert hint in found[0].hint


EXAMPLE = Path(__file__).parents[3] / "replication.example.yaml"
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(
        ["[", "*", "a->b", "->", ".*", "us-east", "2026-13-01", "[]", "{}", "on-demand", "identity", "backfill"]
    ),
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=4,
)


@given(data=st.data())
def test_whatever_stands_in_the_place_of_a_value_the_answer_is_a_configuration_or_its_problems(
    data: st.DataObject,
) -> None:
    """No input ends in a traceback, and no problem is without its hint."""
    written = load_yaml(EXAMPLE.read_text(encoding="utf-8"))
    place = written
    while isinstance(place, dict):
        key = data.draw(st.sampled_from(sorted(place)))
        if not isinstance(place[key], dict) or data.draw(st.booleans()):
            place[key] = data.draw(ANYTHING)
            break
        place = place[key]

    found: tuple[Problem, ...] = ()
    try:
        load(dump_yaml(written) + "\n", now=NOW)
    except InvalidConfiguration as exc:
        found = exc.problems

    assert all(problem.what and problem.hint for problem in found), found


@given(text=st.text(max_size=200))
@example(text="[]")
def test_no_text_ends_in_a_traceback(text: str) -> None:
    with pytest.raises(InvalidConfiguration):
        load(f"{text}\n", now=NOW)


def test_no_advice_is_to_remove_a_key_that_some_section_has() -> None:
    sections = {*(section for section, _ in SECTIONS.values()), *AUTHENTICATIONS.values()}

    accepted = {key for section in sections for key in keys_of(section)}

    assert "emit.offset-syncs.enabled" in accepted
    assert accepted & ELSEWHERE.keys() == set()


def test_every_problem_is_reported_at_once_in_the_documents_order() -> None:
    """Otherwise each run would end at its first problem."""
    found = problems(
        document(
            "a->b: {topics: ['['], start: never}",
            "b->d: {topics: [orders], bogus: 1}",
            rest="defaults: {delivery: once}",
        )
    )

    assert [problem.where for problem in found] == [
        "flows.a->b.topics[0]",
        "flows.a->b.start",
        "flows.b->d",
        "flows.b->d.bogus",
        "defaults.delivery",
    ]
    beside_a_sound_one = problems(document(FLOW, "b->d: {topics: [orders], bogus: 1}"))
    assert [problem.where for problem in beside_a_sound_one] == ["flows.b->d", "flows.b->d.bogus"]


def test_each_wrong_address_of_a_text_is_named() -> None:
    found = problems(
        document(clusters="clusters:\n  a: {bootstrap.servers: 'x, a:1, y'}\n  b: {bootstrap.servers: b:1}")
    )

    assert [each.where for each in found] == ["clusters.a.bootstrap.servers[0]", "clusters.a.bootstrap.servers[2]"]


def test_a_problem_names_its_line() -> None:
    text = document("a->b:", "  topics:", "    - orders", "    - '['")

    assert text.splitlines()[10] == "      - '['"
    assert [problem.line for problem in problems(text)] == [11]


def test_what_defaults_say_wrong_is_reported_once() -> None:
    found = problems(
        document(
            "a->b: {topics: [orders]}", "a->c: {topics: [orders]}", rest="defaults: {transaction.timeout.ms: 70000}"
        )
    )

    assert len({(problem.where, problem.hint) for problem in found}) == len(found) == 1


def test_the_error_reads_like_a_letter_to_the_operator() -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        load(document("a->b: {topics: [orders], deliver: once}"), now=NOW)

    assert str(caught.value).splitlines() == [
        "replication.yaml: 1 problem; nothing was created (a retry does not help)",
        "  line 8, flows.a->b.deliver: there is no such key. What to do: did you mean `delivery`?",
    ]


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"missing\.yaml: the file cannot be read") as caught:
        load(tmp_path / "missing.yaml")

    assert "replication.example.yaml" in caught.value.hint


def test_what_pollers_need_is_asked_of_flows_with_mapped_topics_only() -> None:
    """A source with encryption alone, and no authority that could tell a mapping to use it."""
    ends = ("a: {bootstrap.servers: 'a1:9093', authentication: {type: tls}}", "b: {bootstrap.servers: 'b1:9092'}")
    clusters = "\n  ".join(("clusters:", *ends)) + "\n"
    flow = "topics: [orders], heartbeats.replication.enabled: false"

    load(document(f"a->b: {{{flow}, trigger: schedule}}", clusters=clusters), now=NOW)
    load(document(f"a->b: {{{flow}, trigger.overrides: {{orders: schedule}}}}", clusters=clusters), now=NOW)
    for mapped in ("", ", trigger: schedule, trigger.overrides: {orders: mapping}"):
        assert problems(document(f"a->b: {{{flow}{mapped}}}", clusters=clusters))
    assert problems(document("a->b: {topics: ['o.*'], trigger.overrides: {'o.*': schedule}}", clusters=clusters))


def test_memory_and_time_for_large_records_are_asked_of_flows_with_mapped_topics_only() -> None:
    load(document("a->b: {topics: [orders], oversize: stop, trigger: schedule, function: {memory.mb: 128}}"), now=NOW)


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("checkpoint.interval", "emit.checkpoints.interval.seconds"),
        ("syncgroups", "sync.group.offsets.enabled"),
        ("retention", "offset.map.retention.days"),
        ("replicas", "replication.factor"),
    ],
)
def test_an_unknown_key_is_answered_with_the_nearest_ones(key: str, meant: str) -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        load(document(f"a->b: {{topics: [orders], {key}: 5}}"))

    (problem,) = caught.value.problems
    assert problem.hint.startswith("did you mean")
    assert f"`{meant}`" in problem.hint
    assert problem.hint.count("`") <= 6


def test_a_key_like_no_other_is_not_answered_with_a_list_of_45() -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        load(document("a->b: {topics: [orders], zzz.qqq: 5}"))

    (problem,) = caught.value.problems
    assert problem.hint == "remove it; no key of a->b is like it: docs/reference/configuration.md has all of them"


OWN = """
import random, time
from mirrorless.records.record import Record
from mirrorless.transforms.transform import TransformFailed
seen = []
print("imported")

def copied(record, value=b"masked"):
    return Record(record.offset, record.timestamp, record.headers, record.key, value)

def steady(record):
    if record.value is None or not record.value.startswith(b"{"):
        raise KeyError("customer")
    return copied(record) if b"Ada" in record.value else None

def timed(record):
    return copied(record, str(time.time_ns()).encode())

def by_chance(record):
    return copied(record, random.randbytes(4))

def counted(record):
    seen.append(record)
    return copied(record, str(len(seen)).encode())

def in_a_set_s_order(record):
    return copied(record, str({"a", "b", "c", "d", "e"}).encode())

def ending(record):
    raise SystemExit(3)
"""


@pytest.mark.parametrize(
    ("function", "what"),
    [
        ("own.masks:steady", None),
        ("own.masks:timed", "gave different results for the same record"),
        ("own.masks:by_chance", "gave different results for the same record"),
        ("own.masks:counted", "gave different results for the same record"),
        ("own.masks:in_a_set_s_order", "gave different results for the same record"),
        ("own.masks:missing", "own.masks:missing cannot be imported"),
        ("absent:mask", "absent:mask cannot be imported"),
        ("own.masks:ending", "own.masks:ending ended its process: exit code 3"),
    ],
)
def test_a_function_of_one_s_own_is_tried_before_anything_is_deployed(
    function: str, what: str | None, tmp_path: Path
) -> None:
    """A batch that is tried again, and a proof of it, must see the same bytes."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "masks.py").write_text(OWN, encoding="utf-8")
    file = tmp_path / "replication.yaml"
    rules = f"transforms: [{{topics: orders, fields: {{customer.name: pass}}, function: '{function}'}}]"
    file.write_text(document(f"a->b: {{topics: [orders], {rules}}}"), encoding="utf-8")
    load(file, now=NOW)

    found = examine(file, now=NOW, trial=True).problems

    assert [each.where for each in found] == ([] if what is None else ["flows.a->b.transforms[0].function"])
    assert what is None or what in found[0].what
