from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast, get_args

import pytest
from aws_cdk import App

from infra.deployment import FlowDeployment, plan
from infra.guard.templates import Resource
from infra.monitoring import dashboard, metrics
from infra.monitoring.alarms import JOB_DIED, Alarm, alarms, job_died, pull_alarms
from infra.monitoring.dashboard import RUNBOOK_SECTIONS, dashboard_body
from infra.monitoring.flow_monitoring import alarm_topics
from infra.packaging.assets import HOLLOW
from infra.stacks.spark import SparkStack
from mirrorless.adapters.aws.metrics import BatchMetrics, emit_standby
from mirrorless.config import load
from mirrorless.config.problems import InvalidConfiguration
from mirrorless.cost.bill import ALARMS
from mirrorless.flow.counts import WATCHED, WATCHES, Logged
from mirrorless.flow.naming import NAMESPACE
from mirrorless.protocol.event import Batch
from mirrorless.protocol.replicate import BatchOutcome
from tests.support.assembly import CONTEXT, EXAMPLES, REPOSITORY, Assembly
from tests.support.planned_flows import planned
from tests.support.yaml_text import dump_yaml, load_yaml

Assembled = Callable[[str], Assembly]
RUNBOOK = (REPOSITORY / "docs" / "how-to" / "on-call.md").read_text()


# What is emitted


def test_a_metric_that_is_looked_at_has_the_dimensions_that_are_emitted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One too many is an alarm that never rings. Types hold the names to one table."""
    monkeypatch.delenv("POWERTOOLS_SERVICE_NAME", raising=False)
    flow, batch = _planned({}), Batch.of_topic("orders", {0: []})
    stopped = SimpleNamespace(runs=[], stopped={("orders", 0): None}, waiting={})
    batches = BatchMetrics(flow.flow.name, per_topic=str.upper)

    batches.add(batch, cast("BatchOutcome", stopped), received_at=2, now=3)
    emit_standby(flow.flow.name, "the home is silent")
    lines = map(json.loads, capsys.readouterr().out.splitlines())
    emitted = [each for line in lines if "_aws" in line for each in line["_aws"]["CloudWatchMetrics"]]

    dimensions = tuple(name for name, _ in metrics.of_flow(flow, "home-silent", "Maximum").dimensions)
    search = metrics.over_topics(flow, "stopped-lanes", "Maximum")
    assert {each["Namespace"] for each in emitted} == {NAMESPACE}
    assert {tuple(names) for each in emitted for names in each["Dimensions"]} == {dimensions, (*dimensions, "topic")}
    assert f"{{{NAMESPACE},{','.join(dimensions)},topic}}" in search


COUNTED = {"task-errors", "task-troubles"}
"""Found in every round by the adapter itself."""


def test_every_figure_of_the_table_is_one_that_a_task_finds() -> None:
    """The adapter prints each figure that it is given; a task has to give it."""
    table = REPOSITORY / "shared" / "mirrorless" / "flow" / "counts.py"
    folders = (REPOSITORY / "shared" / "mirrorless", REPOSITORY / "functions")
    tasks = "".join(path.read_text() for folder in folders for path in folder.rglob("*.py") if path != table)

    known = WATCHED | set(get_args(Logged))
    assert [name for name in sorted(known - COUNTED) if f'"{name}"' not in tasks] == []


def test_no_function_has_a_service_name_which_would_be_a_dimension_more(assembled: Assembled) -> None:
    functions = list(assembled("active-active").resources("AWS::Lambda::Function"))

    variables = [each.properties.get("Environment", {}).get("Variables", {}) for each in functions]

    assert not any("POWERTOOLS_SERVICE_NAME" in each for each in variables)


# Alarms


EXPECTED = {
    *("no-heartbeats", "nothing-arrives", "records-late", "deliveries-fail"),
    *(each.alarm for each in WATCHES.values() if each.alarm),
}
OF_PULL = {"pull-silent", "pull-fails", "scheduled-late"}
OF_STANDBY = {"home-silent", "standby-fails", "standby-silent"}
SILENCES = {"no-heartbeats", "nothing-arrives", "pull-silent", "standby-silent"}


def test_an_alarm_is_of_one_metric_and_rings_at_its_silence_only_where_it_is_always_written(
    assembled: Assembled,
) -> None:
    """Each metric that an alarm reads is paid for, and a query's are as many as there are topics."""
    for alarm in (each for example in EXAMPLES for each in _alarms(assembled(example))):
        properties = alarm.properties
        silence = properties["AlarmName"].endswith(tuple(SILENCES))
        assert "Metrics" not in properties
        assert "topic" not in {each["Name"] for each in properties["Dimensions"]}
        assert properties["ComparisonOperator"] == ("LessThanThreshold" if silence else "GreaterThanThreshold")
        assert properties["TreatMissingData"] == ("breaching" if silence else "notBreaching")


NO_BEATS_BACK = {"emit.heartbeats.source.enabled": False}
ONE_TASK = {"refresh.topics.enabled": False, "emit.checkpoints.enabled": False}
HOURLY = {"trigger": "schedule", "heartbeats.replication.enabled": True, "schedule": {"interval.seconds": 3_600}}
CHANGED: Mapping[str, tuple[Mapping[str, Any], set[str], Mapping[str, tuple[str, Any]]]] = {
    "a flow without heartbeats is missed by its tasks": (
        {"emit.heartbeats.enabled": False},
        {"nothing-arrives"},
        {"no-heartbeats": ("metric.name", "task-errors")},
    ),
    "failed deliveries ring sooner where no heartbeats come through": (
        NO_BEATS_BACK,
        {"nothing-arrives"},
        {"deliveries-fail": ("evaluation_periods", 3)},
    ),
    # A retry follows when the failed call has ended: a shorter period would be empty now and then.
    "a forwarder that may take long is looked at as long": (
        {"function": {"timeout.seconds": 840}},
        set(),
        {"deliveries-fail": ("period", 840)},
    ),
    "only alarms of tasks that run are made": (
        ONE_TASK,
        {"groups-not-ready", "mapping-fails", "mapping-refused", "nothing-arrives"},
        {},
    ),
    "mappings are looked at no more often than they are listed": (
        {"refresh.topics.interval.seconds": 3_600},
        set(),
        dict.fromkeys(("mapping-fails", "mapping-refused"), ("period", 3_600)),
    ),
    # Where both functions run in one region, one metric has the age of both.
    "records of an interval are not late before it is over": (
        HOURLY,
        {"nothing-arrives"},
        {"records-late": ("threshold", 4_500_000)},
    ),
    "the number of alarms does not grow with topics": (
        {"topics": [f"t-{number}" for number in range(600)]},
        set(),
        {},
    ),
}
"""By what they say: keys of a flow, the alarms that it lacks, and what others have."""


@pytest.mark.parametrize(("keys", "lacking", "expected"), CHANGED.values(), ids=CHANGED)
def test_alarms_are_those_of_what_the_flow_does(
    keys: Mapping[str, Any], lacking: set[str], expected: Mapping[str, tuple[str, Any]]
) -> None:
    made = alarms(_planned(keys), record_age_seconds=900)

    found = {each.id: each for each in made}
    assert len(found) == len(made)
    assert found.keys() == EXPECTED - lacking
    for id_, (name, value) in expected.items():
        assert attrgetter(name)(found[id_]) == value


def _takes(alarm: Alarm) -> bool:
    """Whether CloudWatch takes its periods."""
    return alarm.period * alarm.evaluation_periods <= (604_800 if alarm.period >= 3_600 else 86_400)


@pytest.mark.parametrize("seconds", [1, 61, 3_599, 3_601, 86_400])
def test_heartbeats_that_are_far_apart_are_given_time_within_what_cloudwatch_takes(seconds: int) -> None:
    flow = _planned({"emit.heartbeats.interval.seconds": seconds, "mapping": {"maximum.batching.window.seconds": 300}})

    missed = [each for each in alarms(flow, record_age_seconds=900) if each.silence]

    assert all(each.period >= min(seconds, 86_400) and each.period % 60 == 0 and _takes(each) for each in missed)


@pytest.mark.parametrize("example", EXAMPLES)
def test_one_alarm_of_each_flow_is_raised_while_any_other_of_its_home_is(example: str, assembled: Assembled) -> None:
    """CloudWatch takes a rule about alarms of its own region and account that exist, and of 10,240 characters."""
    assembly = assembled(example)
    wholes = {each.properties["AlarmName"]: each for each in assembly.resources("AWS::CloudWatch::CompositeAlarm")}

    assert wholes.keys() == {f"mirrorless-{flow.id}" for flow in assembly.deployment.flows}
    for name, whole in wholes.items():
        template = assembly.templates[whole.stack]["Resources"]
        children = {
            id_: each["Properties"]["AlarmName"]
            for id_, each in template.items()
            if each["Type"] == "AWS::CloudWatch::Alarm" and each["Properties"]["AlarmName"].startswith(f"{name}-")
        }
        rule = whole.properties["AlarmRule"]
        assert set(re.findall(r'ALARM\("([^"]+)"\)', rule)) == set(children.values())
        assert set(template[whole.id]["DependsOn"]) == set(children)
        assert len(rule) <= 10_240
        assert "AlarmActions" not in whole.properties, "each alarm notifies by itself"


def test_the_cost_model_counts_the_metrics_that_alarms_read() -> None:
    assert len(alarms(_planned({}), record_age_seconds=900)) == ALARMS


# Scheduled topics


@pytest.mark.parametrize(
    ("example", "kind", "expected"),
    [
        ("long-tail", "pull", OF_PULL | {"lane-stopped"}),  # and one that would else be seen at home only
        ("active-passive", "standby", OF_STANDBY),
    ],
)
def test_the_reader_of_scheduled_topics_and_a_standby_have_their_alarms_where_they_run(
    example: str, kind: str, expected: set[str], assembled: Assembled
) -> None:
    assembly = assembled(example)
    stack = assembly.deployment.artifact_id(kind, _flow(assembly).place_of(kind))

    made = {each.properties["AlarmName"] for each in _alarms(assembly) if each.stack == stack}

    assert made == {f"mirrorless-{_flow(assembly).id}-{each}" for each in expected}


@pytest.mark.parametrize(
    ("schedule", "silent", "late"),
    [
        ({"continuous": True, "shards": 3}, (3, 60, 3), 900),
        ({"interval.seconds": 120}, (1, 120, 3), 1_020),
        ({"interval.seconds": 86_400}, (1, 86_400, 3), 87_300),
    ],
)
def test_three_intervals_without_a_run_of_each_shard_ring_within_what_cloudwatch_takes(
    schedule: dict[str, Any], silent: tuple[int, int, int], late: int
) -> None:
    flow = _planned(HOURLY | {"schedule": schedule})

    found = {each.id: each for each in pull_alarms(flow, record_age_seconds=900)}

    alarm = found["pull-silent"]
    assert (alarm.threshold, alarm.period, alarm.evaluation_periods) == silent
    assert found["scheduled-late"].threshold == late * 1000
    assert all(map(_takes, found.values()))


def test_heartbeats_that_are_scheduled_are_missed_where_they_are_read() -> None:
    flow = _planned(HOURLY)

    (arrives,) = [each for each in pull_alarms(flow, record_age_seconds=900) if each.id == "nothing-arrives"]

    assert arrives.period >= 3_600
    assert arrives.metric.region == flow.place_of("pull").region


# Runbook


def _sections() -> dict[str, str]:
    """The runbook's sections by their anchors, as GitHub makes them."""
    parts = re.split(r"^#{1,4} (.+)$", RUNBOOK, flags=re.MULTILINE)[1:]
    return {
        re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-"): text
        for title, text in zip(parts[::2], parts[1::2], strict=True)
    }


def test_every_alarm_has_a_section_of_the_runbook_that_says_what_to_do_first_and_no_section_is_without() -> None:
    sections = {anchor: text for anchor, text in _sections().items() if anchor.startswith("alarm-")}

    assert sections.keys() == {f"alarm-{each}" for each in EXPECTED | OF_PULL | OF_STANDBY | {JOB_DIED}}
    assert [anchor for anchor, text in sections.items() if "\n1. " not in text] == []


def test_every_link_of_the_runbook_and_of_the_dashboard_leads_to_a_section() -> None:
    links = [*re.findall(r"\]\(#([^)]+)\)", RUNBOOK), *RUNBOOK_SECTIONS.values()]

    assert [each for each in links if each not in _sections()] == []


def test_links_lead_to_the_operators_own_copy_where_there_is_one() -> None:
    alarm = alarms(_planned({}), record_age_seconds=900)[0]

    assert alarm.description("https://wiki.example.com/mirrorless").endswith(
        " Runbook: https://wiki.example.com/mirrorless#alarm-lane-stopped"
    )
    assert alarm.description(None).endswith(" Runbook: docs/how-to/on-call.md#alarm-lane-stopped")


def test_descriptions_are_short_enough_and_say_what_to_do_first_and_which_section_goes_on(assembled: Assembled) -> None:
    for example in EXAMPLES:
        for description in (alarm.properties["AlarmDescription"] for alarm in _alarms(assembled(example))):
            assert " First: " in description
            assert description.rpartition("#")[2] in _sections()
            assert len(description) <= 1024


# Topics that are notified


def test_an_address_subscribes_to_a_topic_that_cloudwatch_may_use(assembled: Assembled) -> None:
    assembly = assembled("active-passive")
    (topic,) = assembly.resources("AWS::SNS::Topic", stack="mirrorless-monitoring")
    (subscription,) = assembly.resources("AWS::SNS::Subscription", stack="mirrorless-monitoring")
    arn = "arn:aws:sns:us-east-1:111122223333:mirrorless-alarms"

    assert "KmsMasterKeyId" not in topic.properties
    assert not list(assembly.resources("AWS::KMS::Key"))
    assert subscription.properties["Endpoint"] == "oncall@example.com"
    (policy,) = assembly.resources("AWS::SNS::TopicPolicy", stack="mirrorless-monitoring")
    (statement,) = (
        each
        for each in policy.properties["PolicyDocument"]["Statement"]
        if each["Principal"] == {"Service": "cloudwatch.amazonaws.com"}
    )
    assert statement["Action"] == "sns:Publish"
    assert statement["Condition"] == {
        "StringEquals": {"aws:SourceAccount": "111122223333"},
        "ArnLike": {"aws:SourceArn": "arn:aws:cloudwatch:us-east-1:111122223333:alarm:mirrorless-*"},
    }
    assert all(str(alarm.properties["AlarmName"]).startswith("mirrorless-") for alarm in _alarms(assembly))
    for alarm in _alarms(assembly):
        there = arn.replace("us-east-1", "us-west-2") if alarm.stack.startswith("mirrorless-standby") else arn
        assert alarm.properties["AlarmActions"] == [there]
    told_once = {
        alarm.properties["AlarmName"]
        for alarm in _alarms(assembly)
        if alarm.properties.get("OKActions") != alarm.properties["AlarmActions"]
    }
    assert told_once == {f"mirrorless-us-east_us-west-{each}" for each in ("source-contradicts", "offsets-lost")}


ON_CALL = [f"arn:aws:sns:{region}:111122223333:on-call" for region in ("eu-west-1", "us-east-1")]
OURS = [arn.replace("on-call", "mirrorless-alarms") for arn in ON_CALL]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"topic.arns": ON_CALL}, {"eu-west-1": (ON_CALL[0],), "us-east-1": (ON_CALL[1],)}),
        (
            {"topic.arns": [ON_CALL[1]], "email": "a@b.c"},  # the address reaches every region
            {"eu-west-1": (OURS[0],), "us-east-1": (ON_CALL[1], OURS[1])},
        ),
    ],
)
def test_each_place_notifies_the_topics_of_its_own_region(
    tmp_path: Path, settings: Mapping[str, Any], expected: Mapping[str, tuple[str, ...]]
) -> None:
    deployment = plan(load(_document(tmp_path, "active-active", settings)))

    assert {place.region: alarm_topics(deployment, place) for place in deployment.homes} == expected


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"topic.arns": ["on-call"]}, "not the ARN of an SNS topic"),
        ({"topic.arns": ["arn:aws:sqs:us-east-1:111122223333:on-call"]}, "not the ARN of an SNS topic"),
        ({"topic.arns": ["arn:aws:sns:us-east-1:111122223333:on-call"]}, "no topic is in eu-west-1"),
        ({"topic.arns": ["arn:aws:sns:ap-south-1:111122223333:x"], "email": "a@b.c"}, "nothing runs in ap-south-1"),
    ],
)
def test_a_topic_that_no_alarm_can_notify_is_refused(tmp_path: Path, settings: dict[str, Any], what: str) -> None:
    with pytest.raises(InvalidConfiguration, match=what):
        plan(load(_document(tmp_path, "active-active", settings)))


# Jobs that die

JOB_RUN_EVENT: Mapping[str, Any] = {
    "version": "0",
    "id": "00df3ec6-5da1-36e6-ab71-20f0de68f8a0",
    "detail-type": "EMR Serverless Job Run State Change",
    "source": "aws.emr-serverless",
    "account": "111122223333",
    "time": "2026-11-28T21:07:42Z",
    "region": "us-west-2",
    "resources": [],
    "detail": {
        "jobRunId": "00f1cbn5g4bb0c01",
        "applicationId": "ours",
        "arn": "arn:aws:emr-serverless:us-west-2:111122223333:/applications/ours/jobruns/00f1cbn5g4bb0c01",
        "releaseLabel": "emr-spark-8.1.0",
        "state": "FAILED",
        "previousState": "RUNNING",
        "createdBy": "arn:aws:sts::111122223333:assumed-role/operator/\x1b[2J",
        "updatedAt": "2026-11-28T21:07:42.299487Z",
        "createdAt": "2026-11-28T21:07:25.325900Z",
    },
}
"""The fields of https://docs.aws.amazon.com/emr/latest/EMR-Serverless-UserGuide/using-eventbridge.html."""


def test_a_job_that_dies_tells_the_topic_which_job_and_what_to_do_and_nothing_that_others_wrote(
    assembled: Assembled,
) -> None:
    assembly = assembled("active-passive")
    application = assembly.only("AWS::EMRServerless::Application")
    rule = assembly.only("AWS::Events::Rule")
    (target,) = rule.properties["Targets"]
    pattern = json.loads(
        json.dumps(rule.properties["EventPattern"]).replace(
            json.dumps({"Fn::GetAtt": [application.id, "ApplicationId"]}), '"ours"'
        )
    )

    def matched(**detail: str) -> bool:
        return _matches(pattern, {**JOB_RUN_EVENT, "detail": {**JOB_RUN_EVENT["detail"], **detail}})

    assert matched()
    assert matched(state="CANCELLED")  # so a run ends that exceeds its time
    assert not matched(state="SUCCESS")
    assert not matched(state="RUNNING")
    assert not matched(applicationId="theirs")
    assert not _matches(pattern, {**JOB_RUN_EVENT, "detail-type": "EMR Serverless Job Run Retry"})

    said = _transformed(target["InputTransformer"], JOB_RUN_EVENT)
    assert said.startswith("Job run 00f1cbn5g4bb0c01 on mirrorless-us-west in us-west-2 is FAILED since 2026-11-28T21:")
    assert "us-east to us-west" in said
    assert "get-job-run --region us-west-2 --application-id ours --job-run-id 00f1cbn5g4bb0c01 " in said
    assert said.rpartition("#")[2] in _sections()
    assert said.isprintable()
    assert not {"<", ">"} & set(said)

    assert target["Arn"] == "arn:aws:sns:us-west-2:111122223333:mirrorless-alarms"
    assert rule.properties["Name"].startswith("mirrorless-")
    policies = assembly.resources("AWS::SNS::TopicPolicy", stack="mirrorless-standby")
    (document,) = [each.properties["PolicyDocument"] for each in policies]
    allowing = [each for each in document["Statement"] if each["Principal"] == {"Service": "events.amazonaws.com"}]
    assert [(each["Action"], each["Condition"]["ArnLike"]["aws:SourceArn"]) for each in allowing] == [
        ("sns:Publish", "arn:aws:events:us-west-2:111122223333:rule/mirrorless-*")
    ]


def test_a_place_that_has_jobs_alone_has_a_topic_of_its_own_and_a_message_names_few_flows(tmp_path: Path) -> None:
    document = _document(tmp_path, "active-passive", {"email": "on-call@example.com"})
    alone = "defaults: {function: {standby.enabled: false}}\nflows:"
    document.write_text(document.read_text().replace("flows:", alone, 1))
    deployment = plan(load(document))
    app = App(outdir=str(tmp_path / "out"), context={**CONTEXT, HOLLOW: True})
    SparkStack(app, deployment=deployment, place=deployment.jobs[0])
    app.synth()
    assembly = Assembly(tmp_path / "out", deployment)

    assert assembly.only("AWS::SNS::Topic").properties["TopicName"] == "mirrorless-alarms"
    (target,) = assembly.only("AWS::Events::Rule").properties["Targets"]
    assert target["Arn"] == "arn:aws:sns:us-west-2:111122223333:mirrorless-alarms"
    many = job_died(deployment.jobs[0], deployment.flows * 500, "mirrorless-us-west", None)
    assert "or 495 others" in many
    assert len(many) < 1_000


def _matches(pattern: Any, event: Any) -> bool:
    """As EventBridge does where a pattern has fields and lists of their values alone."""
    if isinstance(pattern, list):
        return event in pattern
    return all(name in event and _matches(each, event[name]) for name, each in pattern.items())


def _transformed(transformer: Mapping[str, Any], event: Any) -> str:
    """The text that a topic gets: a quoted template, with what the paths lead to."""
    text: str = json.loads(transformer["InputTemplate"])
    for name, path in transformer["InputPathsMap"].items():
        found = event
        for part in path.removeprefix("$.").split("."):
            found = found[part]
        assert f"<{name}>" in text
        text = text.replace(f"<{name}>", found)
    return text


# Dashboards


@pytest.mark.parametrize("example", EXAMPLES)
def test_a_dashboard_begins_with_the_flow_s_alarms_and_fits_its_grid(example: str, assembled: Assembled) -> None:
    assembly = assembled(example)
    dashboards = dict(_dashboards(assembly))

    assert set(dashboards) == {f"mirrorless-{flow.id}" for flow in assembly.deployment.flows}
    for flow in assembly.deployment.flows:
        widgets = dashboards[f"mirrorless-{flow.id}"]["widgets"]
        heading, first = widgets[0], widgets[1]
        made = {
            flow.home.arn("cloudwatch", f"alarm:{each.properties['AlarmName']}")
            for each in _alarms(assembly)
            if str(each.properties["AlarmName"]).startswith(f"mirrorless-{flow.id}-")
            and each.stack.endswith(flow.home.region)
        }
        assert heading["type"] == "text"
        whole = flow.home.arn("cloudwatch", f"alarm:mirrorless-{flow.id}")
        assert first["properties"]["alarms"][0] == whole
        assert set(first["properties"]["alarms"][1:]) == made
        taken = [
            (each["x"] + dx, each["y"] + dy)
            for each in widgets
            for dx in range(each["width"])
            for dy in range(each["height"])
        ]
        assert len(taken) == len(set(taken))
        assert all(x < 24 for x, _ in taken)


def test_a_dashboard_shows_lines_by_topic_only_where_topics_have_metrics() -> None:
    for per_topic in (False, True):
        body = json.loads(dashboard_body(_planned({}), alarm_arns=(), runbook=None, per_topic=per_topic))

        titles = {str(each["properties"].get("title")) for each in body["widgets"]}
        by_topic = {title for title in titles if "by topic" in title}
        assert len(by_topic) == (4 if per_topic else 0)
        assert any("{Mirrorless,source,target,topic}" in each for each in _expressions(body)) == per_topic


def test_what_is_emitted_only_where_it_is_not_zero_is_shown_as_zero_otherwise(assembled: Assembled) -> None:
    """The newest value would be the trouble of an hour ago."""
    body = dict(_dashboards(assembled("long-tail")))["mirrorless-shop_archive"]
    rows = [row for each in body["widgets"] for row in each["properties"].get("metrics", []) if row[0] == NAMESPACE]

    troubles = (WATCHED | {"stopped-lanes", "waiting-lanes"}) - {"heartbeats-emitted"}
    plain = {row[1] for row in rows if row[1] in troubles and row[-1].get("visible", True)}

    assert plain == {"offsets-lost"}  # its sum over the time that is shown
    assert troubles <= {row[1] for row in rows}


def test_tables_are_looked_up_where_they_are_written_and_those_of_another_account_are_not_promised(
    assembled: Assembled,
) -> None:
    (_, here), (_, abroad) = (*_dashboards(assembled("active-passive")), *_dashboards(assembled("cross-account")))
    rows = [row for each in here["widgets"] for row in each["properties"].get("metrics", [])]
    tables = [row for row in rows if row[0] == "AWS/DynamoDB"]

    assert {row[-1]["region"] for row in tables} == {"us-west-2"}
    assert {row[3] for row in tables} == set(_flow(assembled("active-passive")).flow.tables.values())
    assert "AWS/DynamoDB" not in json.dumps(abroad)
    assert "The tables are in 444455556666/us-west-2" in json.dumps(abroad)


def test_lag_is_msk_s_own_where_it_has_the_groups(assembled: Assembled) -> None:
    for example, words in (
        ("active-passive", '"Cluster Name\\"=\\"us-east\\" mirrorless us-east us-west'),
        ("self-managed-to-msk", 'EventSourceMappingUUID} MetricName=\\"MaxOffsetLag'),
    ):
        ((_, body),) = _dashboards(assembled(example))

        assert words.replace('\\"', '"') in "".join(_expressions(body))


# Cost


def test_the_cost_is_what_a_hand_computes() -> None:
    """Five minutes: 3,000 calls of 40 ms at 1 GB on arm, 10 of 55 s at 256 MB; 6,000 writes, twice, and 9,000 reads.

    120 s x 1 GB + 550 s x 0.25 GB = 257.5 GB-s x $0.0000133334 + 3,010 calls x $0.0000002 = $0.00403535 in 5 minutes.
    12,000 x $0.000000625 + 9,000 x $0.000000125 = $0.008625 in 5 minutes.
    """
    flow = replace(_planned({}), replica_region="us-east-1")
    counted = {
        "calls_forward": 3_000.0,
        "ms_forward": 120_000.0,
        "calls_control": 10.0,
        "ms_control": 550_000.0,
        "writes_offset_map": 6_000.0,
        "reads_control": 9_000.0,
    }

    functions, tables = dashboard.functions_per_hour(flow), dashboard.tables_per_hour(flow)

    assert tables is not None
    assert _worth(functions, flow, counted) == pytest.approx(12 * 0.004035351, rel=1e-6)
    assert _worth(tables, flow, counted) == pytest.approx(12 * 0.008625, rel=1e-6)
    x86 = _planned({"function": {"architecture": "x86_64", "memory.mb": 2048}})
    hour = _worth(dashboard.functions_per_hour(x86), x86, {"ms_forward": 1_000.0})
    assert hour == pytest.approx(12 * 2 * 0.0000166667, rel=1e-6)


def test_the_cost_counts_the_memory_that_functions_have_and_everything_that_it_reads_is_on_the_dashboard(
    assembled: Assembled,
) -> None:
    assembly = assembled("active-passive")
    flow = _flow(assembly)
    functions = [each.properties for each in assembly.resources("AWS::Lambda::Function")]
    ((_, body),) = _dashboards(assembly)
    (widget,) = [each for each in body["widgets"] if "Cost, about" in each["properties"].get("title", "")]
    named = {row[-1]["id"]: row[-1] for row in widget["properties"]["metrics"] if "id" in row[-1]}

    counted = {flow.flow.resource_name(part): mb for part, mb in dashboard.memory_mb(flow).items()}
    read = set(re.findall(r"\b(?:ms|calls|writes|reads)_\w+", "".join(_expressions(body))))

    assert counted.items() <= {each["FunctionName"]: each["MemorySize"] for each in functions}.items()
    assert read == named.keys()
    assert all(row["visible"] is False for row in named.values())


def _worth(expression: str, flow: FlowDeployment, counted: Mapping[str, float]) -> float:
    """What CloudWatch would make of it, over five minutes; what was not counted has no value."""
    values: dict[str, float | None] = {**dict.fromkeys(dashboard.cost_metrics(flow)), **counted}

    def fill(value: float | None, default: float) -> float:
        return default if value is None else value

    return float(eval(expression, {"FILL": fill, "PERIOD": lambda _: 300, **values}))  # noqa: S307 -- our own arithmetic


# Reading assemblies, and planning small ones


def _alarms(assembly: Assembly) -> Iterator[Resource]:
    return assembly.resources("AWS::CloudWatch::Alarm")


def _flow(assembly: Assembly) -> FlowDeployment:
    return assembly.deployment.flows[0]


def _dashboards(assembly: Assembly) -> Iterator[tuple[str, dict[str, Any]]]:
    for each in assembly.resources("AWS::CloudWatch::Dashboard"):
        yield each.properties["DashboardName"], json.loads(each.properties["DashboardBody"])


def _expressions(body: Mapping[str, Any]) -> Iterator[str]:
    for widget in body["widgets"]:
        for row in widget["properties"].get("metrics", []):
            if isinstance(row[0], dict):
                yield row[0]["expression"]


def _document(folder: Path, example: str, alarm_settings: Mapping[str, Any]) -> Path:
    document = load_yaml(EXAMPLES[example].read_text())
    document.setdefault("deployment", {})["alarms"] = dict(alarm_settings)
    path = folder / "replication.yaml"
    path.write_text(dump_yaml(document))
    return path


def _planned(settings: Mapping[str, Any]) -> FlowDeployment:
    """The plan of one flow of these settings, in one region and account."""
    return planned(settings, source={"region": "eu-west-1"}, target={"account": "111122223333"})
