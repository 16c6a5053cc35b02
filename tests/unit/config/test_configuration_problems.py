"""Every problem of replication.yaml is reported by its field, with what to write instead."""

from __future__ import annotations

import textwrap
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mirrorless.config import InvalidConfiguration, Problem, load
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
KEPT_IN_EUROPE = "arn:aws:secretsmanager:eu-west-1:111122223333:secret:kafka-AbCdEf"

PAIR = ("a->b: {topics: [orders]}", "b->a: {topics: [orders]}")
MARKED = "defaults: {replication.policy: identity, loop.prevention: header, "
IN_CIRCLES = MARKED + "sync.topic.acls.enabled: false, sync.topic.configs.enabled: false}"

CASES = {
    # unknown keys
    "a misspelt key": (
        document("a->b: {topics: [orders], emit.hearbeats.enabled: true}"),
        "flows.a->b.emit.hearbeats.enabled",
        "did you mean `emit.heartbeats.enabled`?",
    ),
    "underscores for dots": (
        document("a->b: {topics: [orders], replication_factor: 3}"),
        "flows.a->b.replication_factor",
        "did you mean `replication.factor`?",
    ),
    "a key in the wrong section": (
        document("a->b: {topics: [orders], batch.size: 3}"),
        "flows.a->b.batch.size",
        "`batch.size` belongs to `mapping:` of a flow",
    ),
    "a key cut into pieces": (
        document("a->b: {topics: [orders], emit: {heartbeats: {enabled: true}}}"),
        "flows.a->b.emit",
        "`emit.heartbeats.enabled: …`",
    ),
    "a key of a flow at a cluster": (
        cluster("bootstrap.servers: a1:9092, emit.offset-syncs.enabled: true"),
        "clusters.a.emit.offset-syncs.enabled",
        "`emit.offset-syncs.enabled` belongs to a flow, or `defaults`",
    ),
    "a key of the deployment in a flow": (
        document("a->b: {topics: [orders], log.retention.days: 7}"),
        "flows.a->b.log.retention.days",
        "`log.retention.days` belongs to `deployment`",
    ),
    "a key of spark in the deployment": (
        document(rest="deployment: {maximum.vcpu: 8}"),
        "deployment.maximum.vcpu",
        "`maximum.vcpu` belongs to `spark:` of `deployment`",
    ),
    "a key of mm2 that has no counterpart": (
        document(rest="defaults: {tasks.max: 4}"),
        "defaults.tasks.max",
        "`mapping: {maximum.pollers: …}`",
    ),
    "a client option that breaks exactly once": (
        cluster("bootstrap.servers: a1:9092, producer.acks: 1"),
        "clusters.a.producer.acks",
        "exactly once depends on `all`",
    ),
    "a password in the file": (
        cluster("bootstrap.servers: a1:9092, sasl.jaas.config: x"),
        "clusters.a.sasl.jaas.config",
        "a password has no place in this file",
    ),
    "an unknown section": (document(rest="flow: {}"), "flow", "did you mean `flows`?"),
    "too little memory to copy what no event can carry": (
        document("a->b: {topics: [orders], oversize: copy, function: {memory.mb: 128}}"),
        "flows.a->b.function.memory.mb",
        "write 256 or more, or `oversize: ledger`",
    ),
    "too little time to copy what no event can carry": (
        document("a->b: {topics: [orders], oversize: copy, function: {timeout.seconds: 20}}"),
        "flows.a->b.function.timeout.seconds",
        "write 30 or more, or `oversize: ledger`",
    ),
    # the document
    "a key written twice": (
        document("a->b: {topics: [orders]}", "a->b: {topics: [payments]}"),
        "flows.a->b",
        "keep one of the two",
    ),
    "a merge key": (document(rest="defaults: {<<: {delivery: at_least_once}}"), "defaults.<<", "remove it"),
    "a tag": (document("a->b: {topics: [orders], start: !!str latest}"), "flows.a->b.start", "quotes make text"),
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
    "an alias with capitals": (
        document("A->b: {topics: [orders]}", clusters=CLUSTERS.replace("  a:", "  A:")),
        "clusters.A",
        "use a-z, 0-9 and hyphen",
    ),
    "a flow from an unknown cluster": (
        document("us-aest->b: {topics: [orders]}", clusters=CLUSTERS.replace("  a:", "  us-east:")),
        "flows.us-aest->b",
        "did you mean `us-east`?",
    ),
    "a flow to itself": (document("a->a: {topics: [orders]}"), "flows.a->a", "name two different clusters"),
    "no arrow": (document("a-b: {topics: [orders]}"), "flows.a-b", "for example `a->b`"),
    # types and ranges
    "a number in quotes": (
        document("a->b: {topics: [orders], mapping: {batch.size: '500'}}"),
        "flows.a->b.mapping.batch.size",
        "write a whole number from 1 to 10,000, without quotes",
    ),
    "a number that is too large": (
        document("a->b: {topics: [orders], mapping: {batch.size: 20000}}"),
        "flows.a->b.mapping.batch.size",
        "write a whole number from 1 to 10,000",
    ),
    "an interval of nothing": (
        document("a->b: {topics: [orders], emit.checkpoints.interval.seconds: 0}"),
        "flows.a->b.emit.checkpoints.interval.seconds",
        "write a whole number from 1 to 86,400",
    ),
    "a truth value in words": (
        document("a->b: {topics: [orders], enabled: yes}"),
        "flows.a->b.enabled",
        "write `true` or `false`",
    ),
    "a truth value of yaml 1.1": (
        document("a->b: {topics: [orders], enabled: on}"),
        "flows.a->b.enabled",
        "write `true` or `false`",
    ),
    "a value where a list belongs": (
        document(rest="deployment: {kms.key.arns: mine}"),
        "deployment.kms.key.arns",
        "write a list",
    ),
    "a tag's value that aws does not take": (
        document(rest="deployment: {tags: {flow: a->b}}"),
        "deployment.tags",
        "use letters a-z, digits, spaces and `. _ : / = + - @`",
    ),
    "a tag without a name": (document(rest="deployment: {tags: {'': x}}"), "deployment.tags", "write 1 to 128"),
    "a tag of aws's own": (document(rest="deployment: {tags: {'aws:x': y}}"), "deployment.tags", "another prefix"),
    "an octal number": (
        document("a->b: {topics: [orders], mapping: {batch.size: 0o17}}"),
        "flows.a->b.mapping.batch.size",
        "write a whole number from 1 to 10,000",
    ),
    "a number with underscores": (
        document("a->b: {topics: [orders], mapping: {batch.size: 1_000}}"),
        "flows.a->b.mapping.batch.size",
        "write a whole number from 1 to 10,000",
    ),
    "an account without quotes": (
        cluster("bootstrap.servers: a1:9092, account: 111122223333"),
        "clusters.a.account",
        "put it in quotes: account: '111122223333'",
    ),
    "a choice that does not exist": (
        document("a->b: {topics: [orders], delivery: exactly-once}"),
        "flows.a->b.delivery",
        "did you mean `exactly_once`?",
    ),
    "a section where a value belongs": (
        document("a->b: {topics: [orders], mapping: provisioned}"),
        "flows.a->b.mapping",
        "write keys below it",
    ),
    "a batching window that is too long": (
        document("a->b: {topics: [orders], mapping: {maximum.batching.window.seconds: 301}}"),
        "flows.a->b.mapping.maximum.batching.window.seconds",
        "from 0 to 300",
    ),
    "no replica": (
        document("a->b: {topics: [orders], replication.factor: 0}"),
        "flows.a->b.replication.factor",
        "write 1 or more, or -1",
    ),
    "a region that is none": (
        cluster("bootstrap.servers: a1:9092, region: Virginia"),
        "clusters.a.region",
        "like `us-east-1`",
    ),
    # clusters
    "a cluster without brokers": (
        cluster("region: us-east-1"),
        "clusters.a.bootstrap.servers",
        "aws kafka get-bootstrap-brokers",
    ),
    "an empty list of brokers": (
        cluster("bootstrap.servers: []"),
        "clusters.a.bootstrap.servers",
        "write one broker or more",
    ),
    "a broker without a port": (
        cluster("bootstrap.servers: [a1]"),
        "clusters.a.bootstrap.servers[0]",
        "write `host:port`",
    ),
    "a broker twice": (
        cluster("bootstrap.servers: [a1:1, a1:1]"),
        "clusters.a.bootstrap.servers",
        "remove one of the two",
    ),
    "eleven brokers": (
        cluster(f"bootstrap.servers: [{', '.join(f'a{n}:9092' for n in range(11))}]"),
        "clusters.a.bootstrap.servers",
        "remove some",
    ),
    "authentication without a type": (
        cluster("bootstrap.servers: a1:9092, authentication: {secret: x}"),
        "clusters.a.authentication",
        "add `type: …`, which is `plaintext`, `tls`, `plain`, `scram`, `oauthbearer`, `mtls` or `iam`",
    ),
    "an unknown authentication": (
        cluster("bootstrap.servers: a1:9092, authentication: {type: sasl}"),
        "clusters.a.authentication",
        "write `plaintext`, `tls`, `plain`, `scram`, `oauthbearer`, `mtls` or `iam`",
    ),
    "scram without a secret": (
        cluster("bootstrap.servers: a1:9092, authentication: {type: scram}"),
        "clusters.a.authentication.secret",
        "add `secret: …`. Secrets Manager name or ARN of `username` and `password`",
    ),
    "mtls without a secret": (
        cluster("bootstrap.servers: a1:9092, authentication: {type: mtls}"),
        "clusters.a.authentication.secret",
        "`certificate` and `privateKey`",
    ),
    "plain without a secret": (
        cluster("bootstrap.servers: a1:9092, authentication: {type: plain}"),
        "clusters.a.authentication.secret",
        "`username` and `password`",
    ),
    "oauthbearer without a secret": (
        cluster("bootstrap.servers: a1:9092, authentication: {type: oauthbearer}"),
        "clusters.a.authentication.secret",
        "`oauthTokenEndpointUrl` (HTTPS), `oauthClientId` and `oauthClientSecret`",
    ),
    "a scope that no mapping takes": (
        cluster('bootstrap.servers: a1:9092, authentication: {type: oauthbearer, secret: x, scope: "a,b"}'),
        "clusters.a.authentication.scope",
        "letters, digits, spaces",
    ),
    "a password on msk": (
        cluster(f"{MSK}, authentication: {{type: plain, secret: x}}"),
        "clusters.a.authentication.type",
        "write `scram`, `mtls` or `iam`",
    ),
    "tokens on msk": (
        cluster(f"{MSK}, authentication: {{type: oauthbearer, secret: x}}"),
        "clusters.a.authentication.type",
        "remove `msk.cluster.arn`",
    ),
    "tokens in china": (
        cluster(
            "bootstrap.servers: a1:9092, region: cn-north-1, authentication: {type: oauthbearer, secret: x}",
            flow=AT_SOURCE,
        ),
        "clusters.a.authentication.type",
        "write `plain`, `scram` or `mtls`",
    ),
    "an authority of one's own for msk's tls": (
        cluster(f"{MSK}, authentication: {{type: tls, ca: x}}"),
        "clusters.a.authentication.ca",
        "remove it",
    ),
    "tls that no mapping would use": (
        cluster(
            f"bootstrap.servers: a1:9092, region: us-east-1, {NETWORK}, authentication: {{type: tls}}", flow=AT_SOURCE
        ),
        "clusters.a.authentication.ca",
        "add `ca: …`",
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
    "tls without credentials, and without a vpc": (
        cluster("bootstrap.servers: a1:9092, region: us-east-1, authentication: {type: tls, ca: x}", flow=AT_SOURCE),
        "clusters.a.authentication.type",
        "add `vpc` to `a`",
    ),
    "an authority in another region than its reader": (
        cluster(
            f"bootstrap.servers: a1:1, region: us-east-1, {NETWORK}, "
            f"authentication: {{type: tls, ca: '{KEPT_IN_EUROPE}'}}",
            flow=AT_SOURCE,
        ),
        "clusters.a.authentication.ca",
        "replicate it to us-east-1",
    ),
    "a secret for iam": (
        cluster("bootstrap.servers: a1:9092, region: us-east-1, authentication: {type: iam, secret: x}"),
        "clusters.a.authentication.secret",
        "remove it",
    ),
    "iam without a region": (
        cluster("bootstrap.servers: a1:9092, authentication: {type: iam}"),
        "clusters.a.region",
        "add `region: us-east-1`",
    ),
    "a port of msk for another authentication": (
        cluster(f"{MSK.replace('19096', '9098')}, authentication: {{type: mtls, secret: x}}"),
        "clusters.a.bootstrap.servers[0]",
        "write port 9094",
    ),
    "a public port of msk for another authentication, by its name": (
        cluster("bootstrap.servers: b-1-public.a.abc.c1.kafka.us-east-1.amazonaws.com:9196, region: us-east-1"),
        "clusters.a.bootstrap.servers[0]",
        "write port 9092",
    ),
    "a port of ipv6 for another authentication": (
        cluster(f"{MSK.replace('19096', '20096')}, authentication: {{type: iam}}"),
        "clusters.a.bootstrap.servers[0]",
        "write port 9098",
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
    "serverless by a password": (
        cluster(
            f"{SERVERLESS.partition(', authentication')[0].replace('9098', '9094')}, authentication: {{type: tls}}",
            target=AT_B,
        ),
        "clusters.a.authentication.type",
        "write `authentication: {type: iam}`",
    ),
    "a port below those of a vpc connection": (
        cluster(f"{CONNECTED}, bootstrap.servers: 'a1:14000,a2:14001,a3:14100'"),
        "clusters.a.bootstrap.servers[0]",
        "`BootstrapBrokerStringVpcConnectivity…`",
    ),
    "a port above those of a vpc connection": (
        cluster(f"{CONNECTED}, bootstrap.servers: 'a1:14001,a2:14100,a3:14101'"),
        "clusters.a.bootstrap.servers[2]",
        "name the cluster's ARN",
    ),
    "a vpc connection without authentication": (
        cluster(f"{CONNECTED.replace('iam', 'tls')}, bootstrap.servers: a1:14001"),
        "clusters.a.authentication.type",
        "write `iam`, `scram` or `mtls`",
    ),
    "a region that is not the arn's": (cluster(f"{MSK}, region: us-west-2"), "clusters.a.region", "write 'us-east-1'"),
    "a weak hash on msk": (
        cluster(f"{MSK}, authentication: {{type: scram, secret: AmazonMSK_x, {KEY}, mechanism: SCRAM-SHA-256}}"),
        "clusters.a.authentication.mechanism",
        "write `mechanism: SCRAM-SHA-512`",
    ),
    "a secret that msk does not take": (
        cluster(f"{MSK}, authentication: {{type: scram, secret: kafka}}"),
        "clusters.a.authentication.secret",
        "name a secret that does",
    ),
    "a secret of msk without its key": (
        cluster(f"{MSK}, authentication: {{type: scram, secret: AmazonMSK_x}}"),
        "clusters.a.authentication.secret.kms.key.arn",
        "add `secret.kms.key.arn: arn:aws:kms:…`",
    ),
    "one secret for clusters of msk in two regions": (
        cluster(AT_MSK_BY_SCRAM, target=AT_MSK_BY_SCRAM.replace("us-east-1", "eu-west-1")),
        "clusters.b.authentication.secret",
        "make a secret for each cluster, for example `AmazonMSK_x_b`",
    ),
    "a secret of msk without its key, by its arn": (
        cluster(f"bootstrap.servers: a1:9096, authentication: {{type: scram, secret: '{AT_MSK}'}}"),
        "clusters.a.authentication.secret.kms.key.arn",
        "a multi-region key",
    ),
    "an authority of one's own on msk": (
        cluster(f"{MSK}, authentication: {{type: mtls, secret: x, ca: y}}"),
        "clusters.a.authentication.ca",
        "remove it",
    ),
    "a secret in another region than its reader": (
        cluster(
            f"bootstrap.servers: a1:1, region: us-east-1, authentication: {{type: scram, secret: '{KEPT_IN_EUROPE}'}}",
            flow="topics: [orders], function: {run.in: source}",
        ),
        "clusters.a.authentication.secret",
        "replicate it to us-east-1",
    ),
    "a network without security groups": (
        cluster("bootstrap.servers: a1:9092, vpc: {subnets: [subnet-1]}"),
        "clusters.a.vpc.security.groups",
        "add `security.groups: …`",
    ),
    # topics
    "no topics": (document("a->b: {delivery: exactly_once}"), "flows.a->b.topics", "add `topics: [orders]`"),
    "an invalid pattern": (
        document("a->b: {topics: [orders, 'pay[']}"),
        "flows.a->b.topics[1]",
        "put a backslash before a sign that means itself",
    ),
    "a shell's star": (document("a->b: {topics: ['*']}"), "flows.a->b.topics[0]", "write `.*` for anything"),
    "an invalid exclusion": (
        document("a->b: {topics: [orders], topics.exclude: '('}"),
        "flows.a->b.topics.exclude[0]",
        "put a backslash",
    ),
    "an invalid group pattern": (
        document("a->b: {topics: [orders], groups: '+'}"),
        "flows.a->b.groups[0]",
        "put a backslash",
    ),
    "a topic of one letter": (document("a->b: {topics: [o]}"), "flows.a->b.topics[0]", "rename the topic"),
    # triggers and schedules
    "no trigger": (document("a->b: {topics: [orders], trigger: schedul}"), "flows.a->b.trigger", "`schedule`?"),
    "no trigger of an entry": (
        document("a->b: {topics: [orders], trigger.overrides: {orders: off}}"),
        "flows.a->b.trigger.overrides.orders",
        "write `mapping` or `schedule`",
    ),
    "an entry that is no pattern": (
        document("a->b: {topics: [orders], trigger.overrides: {'[': schedule}}"),
        "flows.a->b.trigger.overrides",
        "put a backslash",
    ),
    "an entry of another topic": (
        document("a->b: {topics: [orders, 'p.*'], trigger.overrides: {bills: schedule}}"),
        "flows.a->b.trigger.overrides.bills",
        "add the topic to `topics`",
    ),
    "an entry that an earlier one covers": (
        document("a->b: {topics: [orders, 'p.*'], trigger.overrides: {'p.*': schedule, pay: mapping}}"),
        "flows.a->b.trigger.overrides.pay",
        "write it above 'p.*'",
    ),
    "a pattern without a topic": (
        document(FLOW, rest="defaults: {trigger.overrides: {'b.*': schedule}}"),
        "defaults.trigger.overrides.b.*",
        "add such topics to `topics`",
    ),
    "schedules without a refresh": (
        document("a->b: {topics: [orders], trigger: schedule, refresh.topics.enabled: false}"),
        "flows.a->b.trigger",
        "`refresh.topics.enabled: true`",
    ),
    "half a minute": (
        document("a->b: {topics: [orders], schedule: {interval.seconds: 90}}"),
        "flows.a->b.schedule.interval.seconds",
        "write 60 or 120",
    ),
    "an interval of seconds": (
        document("a->b: {topics: [orders], schedule: {interval.seconds: 30}}"),
        "flows.a->b.schedule.interval.seconds",
        "from 60 to 86,400",
    ),
    "an interval of what is continuous": (
        document("a->b: {topics: [orders], schedule: {interval.seconds: 60, continuous: true}}"),
        "flows.a->b.schedule.interval.seconds",
        "`continuous: false`",
    ),
    "an interval of what the defaults make continuous": (
        document(
            "a->b: {topics: [orders], schedule: {interval.seconds: 60}}",
            rest="defaults: {schedule: {continuous: true}}",
        ),
        "flows.a->b.schedule.interval.seconds",
        "remove it",
    ),
    "a shard too many": (
        document("a->b: {topics: [orders], schedule: {shards: 65}}"),
        "flows.a->b.schedule.shards",
        "from 1 to 64",
    ),
    "a secret where scheduled topics are not read": (
        cluster(
            f"bootstrap.servers: a1:9096, region: us-east-1, authentication: {{type: scram, secret: '{AT_HOME}'}}",
            flow="topics: [orders], trigger: schedule, function: {run.in: source}",
            target="bootstrap.servers: b1:9092, region: eu-west-1",
        ),
        "clusters.a.authentication.secret",
        "`schedule: {run.in: …}`",
    ),
    "a topic with a blank": (document("a->b: {topics: [my orders]}"), "flows.a->b.topics[0]", "use letters, digits"),
    "a topic that is too long": (document(f"a->b: {{topics: [{'x' * 250}]}}"), "flows.a->b.topics[0]", "rename it"),
    "a remote topic that is too long": (
        document(f"a->b: {{topics: [{'x' * 248}]}}"),
        "flows.a->b.topics[0]",
        "shorten the source's alias",
    ),
    "a consumer group that is too long": (
        document(f"a->b: {{topics: [{'x' * 190}]}}"),
        "flows.a->b.topics[0]",
        "schedule this topic by `trigger.overrides`",
    ),
    "a topic twice": (document("a->b: {topics: [orders, orders]}"), "flows.a->b.topics", "remove one of the two"),
    "an internal topic": (document("a->b: {topics: [__consumer_offsets]}"), "flows.a->b.topics[0]", "remove it"),
    "a topic that comes from the target": (
        document("a->b: {topics: [b.orders]}"),
        "flows.a->b.topics[0]",
        "name the original, `orders`",
    ),
    "a topic that is excluded": (
        document("a->b: {topics: [orders], topics.exclude: [orders]}"),
        "flows.a->b.topics[0]",
        "change the exclusion",
    ),
    "a pattern without discovery": (
        document("a->b: {topics: ['orders-.*'], refresh.topics.enabled: false}"),
        "flows.a->b.topics[0]",
        "write `refresh.topics.enabled: true`",
    ),
    "a separator that an alias contains": (
        document(
            "us-east->b: {topics: [orders], replication.policy.separator: '-'}",
            clusters=CLUSTERS.replace("  a:", "  us-east:"),
        ),
        "flows.us-east->b.replication.policy.separator",
        "write a separator that no alias contains",
    ),
    "a separator that no topic can have": (
        document("a->b: {topics: [orders], replication.policy.separator: '/'}"),
        "flows.a->b.replication.policy.separator",
        "1 to 16 letters",
    ),
    # flows together
    "identity both ways": (
        document(
            "a->b: {topics: [orders]}", "b->a: {topics: [orders]}", rest="defaults: {replication.policy: identity}"
        ),
        "defaults.replication.policy",
        "name different topics",
    ),
    "identity both ways by patterns": (
        document("a->b: {topics: .*}", "b->a: {topics: .*}", rest="defaults: {replication.policy: identity}"),
        "defaults.replication.policy",
        "write `loop.prevention: header` in each of these flows",
    ),
    "identity round three clusters": (
        document(
            "a->b: {topics: [orders], replication.policy: identity}",
            "b->c: {topics: [orders, audit], replication.policy: identity}",
            "c->a: {topics: .*, replication.policy: identity}",
        ),
        "flows.c->a.replication.policy",
        "write `loop.prevention: header` in each of these flows",
    ),
    "identity both ways, and one of them without the header": (
        document(
            "a->b: {topics: [orders], loop.prevention: header}",
            "b->a: {topics: [orders]}",
            rest="defaults: {replication.policy: identity}",
        ),
        "defaults.replication.policy",
        "write `loop.prevention: header` in each of these flows",
    ),
    "a header that prefixed names do not need": (
        document("a->b: {topics: [orders], loop.prevention: header}"),
        "flows.a->b.loop.prevention",
        "remove it",
    ),
    "configs of topics copied both ways": (
        document(
            *PAIR,
            rest=MARKED + "sync.topic.acls.enabled: false}",
        ),
        "flows.b->a.sync.topic.configs.enabled",
        "write `false` in all flows between these clusters but one",
    ),
    "ACLs copied both ways": (
        document(
            *PAIR,
            rest=MARKED + "sync.topic.configs.enabled: false}",
        ),
        "flows.b->a.sync.topic.acls.enabled",
        "write `false` in all flows between these clusters but one",
    ),
    "duplicates in a circle": (
        document(*PAIR[:1], "b->a: {topics: [orders], delivery: at_least_once}", rest=IN_CIRCLES),
        "flows.b->a.delivery",
        "write `delivery: exactly_once`",
    ),
    "groups round three clusters": (
        document(
            "a->b: {topics: [orders], emit.checkpoints.enabled: false}",
            "b->c: {topics: [orders]}",
            "c->a: {topics: [orders], emit.checkpoints.enabled: false}",
            rest=IN_CIRCLES,
        ),
        "flows.b->c.emit.checkpoints.enabled",
        "or use pairs",
    ),
    "groups between accounts": (
        document(
            *PAIR[:1],
            "b->a: {topics: [orders], emit.checkpoints.enabled: false}",
            rest=IN_CIRCLES,
            clusters="""
            clusters:
              a: {bootstrap.servers: "a1:9092", region: us-east-1, account: "111122223333"}
              b: {bootstrap.servers: "b1:9092", region: eu-west-1, account: "444455556666"}
            """,
        ),
        "flows.a->b.emit.checkpoints.enabled",
        "write `emit.checkpoints.enabled: false`",
    ),
    "two flows into one remote topic": (
        document(
            "a->c: {topics: [orders], replication.policy: identity}",
            "b->c: {topics: [orders], replication.policy: identity}",
        ),
        "flows.b->c.topics",
        "name different topics",
    ),
    "a prefixed and an identical name that meet": (
        document("a->c: {topics: [orders]}", "b->c: {topics: [a.orders], replication.policy: identity}"),
        "flows.b->c.topics",
        "name different topics",
    ),
    # limits
    "a transaction longer than its function": (
        document("a->b: {topics: [orders], transaction.timeout.ms: 60000}"),
        "flows.a->b.transaction.timeout.ms",
        "write less than 60,000",
    ),
    "a transaction longer than brokers allow": (
        document("a->b: {topics: [orders], transaction.timeout.ms: 900001}"),
        "flows.a->b.transaction.timeout.ms",
        "from 1,000 to 900,000",
    ),
    "a function longer than a mapping allows": (
        document("a->b: {topics: [orders], function: {timeout.seconds: 900}}"),
        "flows.a->b.function.timeout.seconds",
        "from 5 to 840",
    ),
    "more pollers at least than at most": (
        document("a->b: {topics: [orders], mapping: {minimum.pollers: 5, maximum.pollers: 4}}"),
        "flows.a->b.mapping.minimum.pollers",
        "write 1 to 4",
    ),
    "pollers on demand": (
        document("a->b: {topics: [orders], mapping: {mode: on-demand, minimum.pollers: 2}}"),
        "flows.a->b.mapping.minimum.pollers",
        "write `mode: provisioned`, or remove it",
    ),
    "partial batch response on demand": (
        document(rest="defaults: {mapping: {mode: on-demand, partial.batch.response: true}}"),
        "defaults.mapping.partial.batch.response",
        "write `mode: provisioned`, or remove it",
    ),
    "a poller group that is too large": (
        document(
            f"a->b: {{topics: [{', '.join(f't{n}' for n in range(30))}]}}",
            rest="defaults: {mapping: {poller.group.name: all, maximum.pollers: 100}}",
        ),
        "defaults.mapping.maximum.pollers",
        "write 66 or fewer",
    ),
    "a poller group of too many mappings": (
        document(
            f"a->b: {{topics: [{', '.join(f't{n}' for n in range(101))}]}}",
            rest="defaults: {mapping: {poller.group.name: all, maximum.pollers: 1}}",
        ),
        "defaults.mapping.poller.group.name",
        "leave it out, or use another `poller.group.name`",
    ),
    "a poller group's name with a space": (
        document("a->b: {topics: [orders], mapping: {poller.group.name: my group}}"),
        "flows.a->b.mapping.poller.group.name",
        "up to 128 letters",
    ),
    "a retry limit": (
        document("a->b: {topics: [orders], mapping: {maximum.retry.attempts: 3}}"),
        "flows.a->b.mapping.maximum.retry.attempts",
        "or records would be lost",
    ),
    "a start without a time zone": (
        document("a->b: {topics: [orders], start: 2026-01-01T12:00:00}"),
        "flows.a->b.start",
        "write 2026-01-01T12:00:00Z for UTC",
    ),
    "a start in the future": (
        document("a->b: {topics: [orders], start: 2026-06-02T00:00:00Z}"),
        "flows.a->b.start",
        "write a time that is past",
    ),
    "a start in words": (
        document("a->b: {topics: [orders], start: beginning}"),
        "flows.a->b.start",
        "earliest, latest, backfill",
    ),
    "group offsets without checkpoints": (
        document("a->b: {topics: [orders], sync.group.offsets.enabled: true, emit.checkpoints.enabled: false}"),
        "flows.a->b.sync.group.offsets.enabled",
        "write `emit.checkpoints.enabled: true`",
    ),
    "settings that no environment variable holds": (
        cluster(f"bootstrap.servers: [{', '.join(f'{chr(97 + n) * 290}:9092' for n in range(10))}]"),
        "clusters.a.bootstrap.servers",
        "two or three are enough",
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


@settings(max_examples=100, deadline=None)
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
    sections = {*SECTIONS.values(), *AUTHENTICATIONS.values()}

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
    load(document("a->b: {topics: [orders], oversize: copy, trigger: schedule, function: {memory.mb: 128}}"), now=NOW)


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
