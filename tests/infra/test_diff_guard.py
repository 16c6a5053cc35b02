"""What the guard refuses, what it lets pass, and what it says."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from infra.guard import diff_guard
from infra.guard.change_rules import findings
from infra.guard.templates import MAPPING, TABLE, Templates, changeable_at_times, controls, unchangeable
from infra.guard.verdict import ChangeFinding
from tests.support.assembly import REPOSITORY

Template = dict[str, Any]

STATE, REPLICATION, CONTROL = "mirrorless-state-eu", "mirrorless-replication-us", "mirrorless-control-us"
CLUSTER = "arn:aws:kafka:us-east-1:111122223333:cluster/a/6cc0432b-8618-4f44-bccc-e1fbd8fb7c4d-2"
GROUP = "mirrorless.a.b."


def replica(region: str) -> Template:
    return {
        "Region": region,
        "DeletionProtectionEnabled": True,
        "PointInTimeRecoverySpecification": {"PointInTimeRecoveryEnabled": True},
    }


def mapping(topic: str) -> Template:
    return {
        "Type": MAPPING,
        "Properties": {
            "Topics": [topic],
            "EventSourceArn": CLUSTER,
            "AmazonManagedKafkaEventSourceConfig": {"ConsumerGroupId": f"{GROUP}{topic}"},
            "StartingPosition": "TRIM_HORIZON",
            "BatchSize": 100,
        },
    }


def schedule(*topics: str, **settings: Any) -> Template:
    side = {"bootstrap": "k1.example.com:9096", "region": "us-east-1", "key of another version": 1}
    flow = {"flow": "a->b", "source": side | {"alias": "a"}, "target": side | {"alias": "b"}}
    given = flow | {"topics": topics, "key of another version": 1} | settings
    return {"Type": "AWS::Scheduler::Schedule", "Properties": {"Target": {"Input": json.dumps(given)}}}


def forwarder(*, target: str = "k2.example.com:9096", **settings: Any) -> Template:
    sides = {
        "source": {"alias": "a", "bootstrap": "k1.example.com:9096"},
        "target": {"alias": "b", "bootstrap": target},
    }
    text = json.dumps({"flow": "a->b"} | sides | settings)
    properties = {"Handler": "forward.handler", "Environment": {"Variables": {"MIRRORLESS_FLOW": text}}}
    return {"Type": "AWS::Lambda::Function", "Properties": properties}


@pytest.fixture
def old() -> Template:
    """A small deployment: a table, a bucket, an application, two mappings and the schedule of one flow."""
    table = {
        "Type": TABLE,
        "DeletionPolicy": "Retain",
        "UpdateReplacePolicy": "Retain",
        "Properties": {
            "TableName": "mirrorless-offset-map-a_b",
            "KeySchema": [{"AttributeName": "lane", "KeyType": "HASH"}],
            "Replicas": [replica("eu-west-1"), replica("us-east-1")],
        },
    }
    bucket = {
        "Type": "AWS::S3::Bucket",
        "DeletionPolicy": "Retain",
        "Properties": {"BucketName": "mirrorless-eu", "VersioningConfiguration": {"Status": "Enabled"}},
    }
    application = {
        "Type": "AWS::EMRServerless::Application",
        "Properties": {"Name": "mirrorless-b", "Type": "SPARK", "ReleaseLabel": "emr-spark-8.0.0"},
    }
    found = {"Type": "Custom::MirrorlessFoundMappings", "Properties": {"ServiceToken": {"Fn::GetAtt": ["R", "Arn"]}}}
    return {
        STATE: {"Resources": {"Map": table, "Jobs": bucket, "Spark": application}},
        REPLICATION: {"Resources": {"Orders": mapping("orders"), "Payments": mapping("payments"), "F": forwarder()}},
        CONTROL: {"Resources": {"Schedule": schedule("orders", "payments", "events-.*"), "Found": found}},
    }


@pytest.fixture
def new(old: Template) -> Template:
    return copy.deepcopy(old)


def refusals(old: Template, new: Template) -> list[ChangeFinding]:
    return [finding for finding in findings(old, new) if finding.refused]


def the_only(found: list[ChangeFinding]) -> ChangeFinding:
    assert len(found) == 1, found
    return found[0]


def properties(templates: Template, stack: str, id_: str) -> Template:
    found: Template = templates[stack]["Resources"][id_]["Properties"]
    return found


# One change, and the one finding


Change = Callable[[Template, Template], object]
"""What becomes of the old and the new templates."""


def put(stack: str, id_: str, name: str, value: Any) -> Change:
    return lambda _old, new: properties(new, stack, id_).update({name: value})


def drop(stack: str, id_: str, part: str = "") -> Change:
    """A resource goes, or a part of its body."""
    return lambda _old, new: new[stack]["Resources"][id_].pop(part) if part else new[stack]["Resources"].pop(id_)


def copied(**weaker: Any) -> Change:
    return lambda _old, new: properties(new, STATE, "Map")["Replicas"][1].update(weaker)


def moved(stack: str) -> Change:
    def move(_old: Template, new: Template) -> None:
        mapping_ = new[REPLICATION]["Resources"].pop("Orders")
        new.setdefault(stack, {"Resources": {}})["Resources"]["OrdersAgain"] = mapping_

    return move


def found_before(new: Mapping[str, Template], *topics: str, old: Template | None = None, gone: str = "") -> Change:
    """Mappings come, one may go, and the schedule says so. Args: old: the schedule before."""

    def change(before: Template, after: Template) -> None:
        after[REPLICATION]["Resources"] |= new
        after[REPLICATION]["Resources"].pop(gone, None)
        after[CONTROL]["Resources"]["Schedule"] = schedule(*topics)
        before[CONTROL]["Resources"]["Schedule"] = old or before[CONTROL]["Resources"]["Schedule"]

    return change


def handed(trigger: str) -> Change:
    def change(_old: Template, new: Template) -> None:
        del new[REPLICATION]["Resources"]["Orders"]
        new[CONTROL]["Resources"]["Schedule"] = schedule(*LITERAL, "events-.*", trigger_overrides={"orders": trigger})

    return change


def unhanded(**before: Any) -> Change:
    def change(old: Template, _new: Template) -> None:
        del old[REPLICATION]["Resources"]["Orders"]
        old[CONTROL]["Resources"]["Schedule"] = schedule(*LITERAL, "events-.*", **before)

    return change


def renamed(stack: str, old: str, new: str) -> Change:
    return lambda _, after: after[stack]["Resources"].update({new: after[stack]["Resources"].pop(old)})


def reordered(old: Template, new: Template) -> None:
    """A mapping of the same brokers in another order, under another id."""
    for templates, id_, brokers in ((old, "Orders", ["k1:9092", "K2:9092"]), (new, "Again", ["k2:9092", "k1:9092"])):
        resources = templates[REPLICATION]["Resources"]
        changed = resources[id_] = resources.pop("Orders")
        del changed["Properties"]["EventSourceArn"]
        changed["Properties"]["SelfManagedEventSource"] = {"Endpoints": {"KafkaBootstrapServers": brokers}}


def elsewhere(**settings: Any) -> Change:
    return lambda _old, new: new[REPLICATION]["Resources"].update(F=forwarder(**settings))


READS: Template = {"FunctionResponseTypes": ["ReportBatchItemFailures"]}


def naming_failures(
    *, named: Template = READS, found: Template = READS, patterns: tuple[str, ...] = ("events-.*",), **more: Any
) -> Change:
    """The forwarder begins to name failed records, and every mapping reads that afterwards; before, these fields."""

    def change(old: Template, new: Template) -> None:
        for templates, partial, literal, template in ((old, "false", named, found), (new, "true", READS, READS)):
            variables = properties(templates, REPLICATION, "F")["Environment"]["Variables"]
            variables["MIRRORLESS_PARTIAL_RESPONSES"] = partial
            properties(templates, REPLICATION, "Orders").update(literal)
            properties(templates, REPLICATION, "Payments").update(READS)
            templates[CONTROL]["Resources"]["Schedule"] = schedule(
                *LITERAL, *patterns, mapping_template=template, **more
            )

    return change


def in_another_stack(old: Template, new: Template) -> None:
    """The forwarder is made beside the old one, which goes on as it was."""
    naming_failures(named={})(old, new)
    new["mirrorless-replication-eu"] = {"Resources": {"F": new[REPLICATION]["Resources"].pop("F")}}


def readdressed(before: str, after: str, *patterns: str) -> Change:
    """The source of the mappings of found topics gets other addresses."""

    def change(old: Template, new: Template) -> None:
        for templates, servers in ((old, before), (new, after)):
            source = {"SelfManagedEventSource": {"Endpoints": {"KAFKA_BOOTSTRAP_SERVERS": servers.split(",")}}}
            found = schedule(*LITERAL, *patterns, mapping_template=source, heartbeats_replication_enabled=False)
            templates[CONTROL]["Resources"]["Schedule"] = found

    return change


LITERAL = ("orders", "payments")
MORE = ("eu-west-1", "us-east-1", "us-west-2")
EVENTS = {"Events": mapping("events-eu")}
SCHEDULED_EVENTS = schedule(*LITERAL, "events-.*", trigger_overrides={"events-eu": "schedule"})
NO_RECOVERY = {"PointInTimeRecoverySpecification": {"PointInTimeRecoveryEnabled": False}}
SUSPENDED = ("VersioningConfiguration", {"Status": "Suspended"})
GOES, OFF_THERE = "Retain -> Delete", "is switched off in us-east-1"
ENDPOINTS = {"Endpoints": {"KafkaBootstrapServers": ["k1:9092"]}}


def without_address(old: Template, _: Template) -> None:
    """With it the alarms had a topic, and a key for its messages."""
    old[REPLICATION]["Resources"]["Key"] = {"Type": "AWS::KMS::Key", "DeletionPolicy": "Delete", "Properties": {}}


REFUSED: Mapping[str, tuple[Change, str, str]] = {
    "a table that leaves the templates": (drop(STATE, "Map"), "Map", "stays in the account"),
    "a bucket that leaves the templates": (drop(STATE, "Jobs"), "Jobs", "stays in the account"),
    "a stack that goes, as one": (lambda _, new: new.pop(STATE), STATE, "stay in the account"),
    "a table's name": (put(STATE, "Map", "TableName", "mirrorless-map-a_b"), "Map", "TableName"),
    "a table's key": (put(STATE, "Map", "KeySchema", [{"AttributeName": "topic"}]), "Map", "KeySchema"),
    "a bucket's name": (put(STATE, "Jobs", "BucketName", "mirrorless-us"), "Jobs", "BucketName"),
    "an application's name": (put(STATE, "Spark", "Name", "mirrorless-c"), "Spark", "Name"),
    "a table under another logical id": (renamed(STATE, "Map", "TheMap"), "Map", "TheMap"),
    "a table that goes with its stack": (drop(STATE, "Map", "DeletionPolicy"), "Map", f"DeletionPolicy {GOES}"),
    "or when it is made anew": (drop(STATE, "Map", "UpdateReplacePolicy"), "Map", f"UpdateReplacePolicy {GOES}"),
    "a table without protection": (copied(DeletionProtectionEnabled=False), "Map", f"deletion protection {OFF_THERE}"),
    "a table without a way back": (copied(**NO_RECOVERY), "Map", f"point-in-time recovery {OFF_THERE}"),
    "a bucket without versions": (put(STATE, "Jobs", *SUSPENDED), "Jobs", "versioning is switched off"),
    "what keeps found mappings": (put(CONTROL, "Found", "ServiceToken", "Another"), "Found", "ServiceToken"),
    "a copy of a table that goes": (lambda _, new: properties(new, STATE, "Map")["Replicas"].pop(), "Map", "us-east-1"),
    **{
        f"a mapping's {name}, which Lambda changes in none": (put(REPLICATION, "Orders", name, value), "Orders", name)
        for name, value in {
            "Topics": ["orders-2"],
            "StartingPosition": "LATEST",
            "StartingPositionTimestamp": 1_700_000_000,
            "EventSourceArn": CLUSTER.replace("/a/", "/c/"),
            "SelfManagedEventSource": ENDPOINTS,
            "AmazonManagedKafkaEventSourceConfig": {"ConsumerGroupId": "another"},
        }.items()
    },
    "a mapping of the same source and group": (moved(REPLICATION), "Orders", "409"),
    "one in another stack": (moved("mirrorless-replication-us-111122223333"), "Orders", "409"),
    "a topic that was found and is named now": (
        found_before(EVENTS, *LITERAL, "events-eu", "events-.*"),
        "Events",
        "add events-eu to `topics.exclude`",
    ),
    "heartbeats that are named now, found without a pattern": (
        found_before({"Beats": mapping("heartbeats")}, *LITERAL, "events-.*"),
        "Beats",
        "heartbeats.replication.enabled",
    ),
    **{
        f"a literal topic that was scheduled, by {overrides} beside {trigger}": (
            unhanded(trigger=trigger, trigger_overrides=overrides),
            "Orders",
            "`trigger.overrides: {orders: mapping}`",
        )
        for trigger, overrides in (
            ("mapping", {"orders": "schedule"}),
            ("mapping", {"ord.*": "mapping"}),
            ("schedule", {"payments": "mapping"}),
        )
    },
    "a scheduled topic that was found and is named without an entry": (
        found_before(EVENTS, *LITERAL, "events-.*", old=SCHEDULED_EVENTS),
        "Events",
        "`trigger.overrides: {events-eu: mapping}`",
    ),
    "a flow that names its topics otherwise": (
        elsewhere(replication_policy="identity"),
        "F",
        "remote topics get other names",
    ),
    "a flow with another separator": (
        elsewhere(replication_policy_separator="_"),
        "F",
        "remote topics get other names",
    ),
    "a cluster with another prefix": (elsewhere(prefixes={"a": "A"}), "F", "remote topics get other names"),
    "a flow to another cluster": (elsewhere(target="other:9096"), "F", "no broker of the target is the same"),
    "brokers of one source in another order": (reordered, "Orders", "409"),
    # A deployment changes the function first: what it names would count as delivered.
    "failed records that a mapping does not read": (naming_failures(named={}), "F", "do not read that yet: orders"),
    "failed records that found ones do not": (
        naming_failures(found={}),
        "F",
        "not read that yet: those of found topics",
    ),
    # Heartbeats from further up are found without a pattern.
    "nor those of heartbeats": (naming_failures(found={}, patterns=()), "F", "`partial.batch.response: false`"),
}
"""By what changes: how, the logical id of the refusal, and words of it."""

NOTED: Mapping[str, tuple[Change, str]] = {
    "what an application takes while it stands still": (put(STATE, "Spark", "ReleaseLabel", "8.1.0"), "ReleaseLabel"),
    "also its tags": (put(STATE, "Spark", "Tags", {"team": "streams"}), "changed only while it is stopped"),
    "a copy more": (put(STATE, "Map", "Replicas", [*map(replica, MORE)]), "changed in place: Replicas"),
    "what Lambda changes in place": (put(REPLICATION, "Orders", "BatchSize", 5000), "changed in place: BatchSize"),
    "the end of what keeps found mappings": (drop(CONTROL, "Found"), ""),
    "a topic that leaves": (found_before({}, "payments", "events-.*", gone="Orders"), "orders is not mapped any more"),
    "a topic that comes": (
        found_before({"Refunds": mapping("refunds")}, *LITERAL, "refunds", "events-.*"),
        "refunds is replicated from now on",
    ),
    "a topic that was named and is found now": (
        found_before({}, "payments", "events-.*", "ord.*", gone="Orders"),
        "orders is found by a pattern from now on",
    ),
    "a literal topic that is scheduled now": (handed("schedule"), "orders is scheduled from now on"),
    "a literal topic that was scheduled": (handed("mapping"), "orders is mapped by refresh_topics from now on"),
    "failed records that every mapping reads": (naming_failures(), "see that each is provisioned"),
    "other addresses of the source": (readdressed("k1,k2", "k1,k3", "events-.*"), "each is deleted and made anew"),
    "whose topics wait for the first": (readdressed("k1,k2", "k1,k3", "events-.*"), "then 20 at a time"),
}
"""By what changes: how, and what is said of it."""

ALLOWED: Mapping[str, Change] = {
    "a topic that was found and then excluded is named": found_before(
        EVENTS, *LITERAL, "events-.*", old=schedule(*LITERAL, "events-.*", topics_exclude=["events-eu"])
    ),
    "a topic is named where nothing looked for topics": found_before(
        EVENTS, *LITERAL, old=schedule("events-.*", refresh_topics_enabled=False)
    ),
    "no address for the alarms any more": without_address,
    "other ports and more brokers of one cluster": elsewhere(target="k9.example.com:9098,k2.example.com:9098"),
    "a forwarder in another stack, which names failed records": in_another_stack,
}
"""What is not refused."""

UNMENTIONED: Mapping[str, Change] = {
    "what is the same": lambda _old, _new: None,
    "the same addresses in another order": readdressed("k1,k2", "k2,k1", "events-.*"),
    "other addresses where no topic is found": readdressed("k1", "k3"),
    "failed records where nothing looks for topics": naming_failures(found={}, refresh_topics_enabled=False),
    "or where none is found": naming_failures(found={}, patterns=(), heartbeats_replication_enabled=False),
}


@pytest.mark.parametrize(("change", "id_", "words"), REFUSED.values(), ids=REFUSED)
def test_what_would_lose_data_or_a_position_is_refused(
    change: Change, id_: str, words: str, old: Template, new: Template
) -> None:
    change(old, new)

    refusal = the_only(refusals(old, new))

    assert refusal.id == id_
    assert words in f"{refusal.what} {refusal.why} {refusal.instead}"


@pytest.mark.parametrize(("change", "what"), NOTED.values(), ids=NOTED)
def test_what_loses_nothing_is_noted(change: Change, what: str, old: Template, new: Template) -> None:
    change(old, new)

    finding = the_only(findings(old, new))

    assert not finding.refused
    assert what in f"{finding.what} {finding.why} {finding.instead}"


@pytest.mark.parametrize("change", ALLOWED.values(), ids=ALLOWED)
def test_what_is_as_it_was_to_records_is_allowed(change: Change, old: Template, new: Template) -> None:
    change(old, new)

    assert refusals(old, new) == []


@pytest.mark.parametrize("change", UNMENTIONED.values(), ids=UNMENTIONED)
def test_what_changes_nothing_is_not_mentioned(change: Change, old: Template, new: Template) -> None:
    change(old, new)

    assert findings(old, new) == []


# What holds data


def test_a_stack_that_goes_names_the_data_that_nothing_keeps(old: Template, new: Template) -> None:
    del old[STATE]["Resources"]["Jobs"]["DeletionPolicy"]
    del new[STATE]

    why = the_only(refusals(old, new)).why
    assert "for good: bucket" in why
    assert "Jobs" in why
    assert "Map" not in why


def test_a_table_that_moves_to_another_stack_is_refused(old: Template, new: Template) -> None:
    new[f"{STATE}-111122223333"] = new[STATE]
    new[STATE] = {"Resources": {}}

    assert {finding.id for finding in refusals(old, new)} == {"Map", "Jobs", "Spark"}
    assert all(f"{STATE}-111122223333" in finding.what for finding in refusals(old, new))


# Triggers


def pull(*, flow: str = "a->b") -> Template:
    given = {"flow": {"flow": flow}, "shard": 0, "shards": 1}
    return {"Type": "AWS::Scheduler::Schedule", "Properties": {"Target": {"Input": json.dumps(given)}}}


def test_the_end_of_the_reader_of_scheduled_topics_is_noted_where_the_flow_stays(old: Template, new: Template) -> None:
    old["mirrorless-pull-eu"] = {"Resources": {"Shard0": pull(), "Shard1": pull(), "Other": pull(flow="b->a")}}
    new["mirrorless-pull-eu"] = {"Resources": {}}

    finding = the_only(findings(old, new))

    assert not finding.refused
    assert finding.subject.startswith("flow a->b")
    assert "keep a section `schedule`" in finding.instead


# Where the rules come from


def test_what_is_deployed_says_nothing_to_the_terminal() -> None:
    finding = ChangeFinding(
        refused=True, stack="state", id="a", subject="Table\x1b[2J", what="goes\u202e", why="\x9b1A"
    )

    assert str(finding).splitlines() == [r"REFUSED    Table\x1b[2J: goes\u202e", r"  why      \x9b1A"]


def test_the_schemas_say_what_makes_a_table_anew() -> None:
    assert "TableName" in unchangeable(TABLE)
    assert "KeySchema" in changeable_at_times(TABLE)


def test_the_api_says_what_is_fixed_in_a_mapping_and_the_schema_does_not() -> None:
    assert {"Topics", "StartingPosition", "EventSourceArn", "SelfManagedEventSource"} <= set(unchangeable(MAPPING))
    assert not {"BatchSize", "FunctionName", "Enabled", "Tags"} & set(unchangeable(MAPPING))


# The command


@pytest.fixture
def folders(tmp_path: Path, old: Template, new: Template) -> Callable[[], list[str]]:
    """Both deployments as folders of templates; written at their first use, so that a test can change them before."""

    def written() -> list[str]:
        for name, templates in (("old", old), ("new", new)):
            (tmp_path / name).mkdir()
            for stack, template in templates.items():
                (tmp_path / name / f"{stack}.template.json").write_text(json.dumps(template))
        return [str(tmp_path / "old"), str(tmp_path / "new")]

    return written


def test_the_exit_code_says_whether_it_may_be_deployed_and_one_refusal_may_be_accepted(
    folders: Callable[[], list[str]], new: Template, capsys: pytest.CaptureFixture[str]
) -> None:
    del new[STATE]["Resources"]["Map"], new[STATE]["Resources"]["Jobs"]
    given = folders()

    assert diff_guard.main(given) == diff_guard.REFUSED
    assert "REFUSED    table mirrorless-offset-map-a_b" in capsys.readouterr().out
    assert diff_guard.main([*given, "--accept", "Map", "--json"]) == diff_guard.REFUSED, "and no other"
    printed = json.loads(capsys.readouterr().out)["findings"]
    assert [(each["id"], each["refused"], each["accepted"]) for each in printed] == [
        ("Jobs", True, False),
        ("Map", False, True),
    ]
    assert diff_guard.main([*given, "--accept", "Map", "--accept", "Jobs"]) == 0
    assert "2 accepted" in capsys.readouterr().out


def test_what_nothing_can_be_compared_with_is_bad_input(
    folders: Callable[[], list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert diff_guard.main([str(tmp_path), str(tmp_path)]) == diff_guard.BAD_INPUT
    assert "there are no templates" in capsys.readouterr().err
    assert diff_guard.main([*folders(), "--accept", "Map"]) == diff_guard.BAD_INPUT
    assert "nothing is refused of Map" in capsys.readouterr().err


def test_a_configuration_without_an_enabled_flow_has_no_stacks(
    folders: Callable[[], list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (nothing := tmp_path / "nothing").mkdir()
    (nothing / "manifest.json").write_text("{}")

    assert diff_guard.main([folders()[0], str(nothing)]) == diff_guard.REFUSED
    assert f"stack {STATE}: has left" in capsys.readouterr().out


@pytest.fixture(scope="module")
def changed() -> dict[str, Templates]:
    """The templates of the examples of changes, by their names."""
    changes = REPOSITORY / "docs" / "examples" / "changes"
    return {name: diff_guard.templates_of(changes / f"{name}.yaml") for name in ("before", "harmless", "refused")}


def test_of_the_two_examples_one_may_be_deployed_and_the_other_may_not(changed: dict[str, Templates]) -> None:
    before, harmless, refused = (changed[name] for name in ("before", "harmless", "refused"))

    assert [finding.what for finding in findings(before, harmless)] == [
        "changed in place: BatchSize, ProvisionedPollerConfig",
        "payments is found by a pattern from now on",
        "refunds is replicated from now on",
    ]
    assert not any(finding.refused for finding in findings(before, harmless))
    assert {finding.what for finding in findings(before, refused) if finding.refused} == {
        "remote topics get other names",
        "events-eu was found by a pattern, and is named literally now",
        "StartingPosition TRIM_HORIZON -> LATEST",
        "its copy in us-east-1 is removed",
    }


def test_a_standbys_schedule_is_not_taken_for_its_homes(old: Template, new: Template) -> None:
    new["mirrorless-standby-eu"] = {"Resources": {"Schedule": schedule("orders", stands_by=True)}}

    assert controls(new) == controls(old)
