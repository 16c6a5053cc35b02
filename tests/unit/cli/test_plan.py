"""The command `plan`: rates from a file, progress, tables, JSON, and the file that it writes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.plan import progress, small_batches
from mirrorless.config import load
from mirrorless.cost.plan import TopicPlan
from mirrorless.cost.rates import COLUMNS, TopicRate
from mirrorless.flow.triggers import MAPPING, SCHEDULE, Trigger
from mirrorless.protocol.copy_choice import cpu_beside_large
from tests.support.commands import Answer, Command

CONFIGURATION = """\
# Two clusters.
clusters:
  us-east: {bootstrap.servers: [east.example.com:9092], region: us-east-1, authentication: {type: plaintext}}
  eu-west: {bootstrap.servers: [west.example.com:9092], region: eu-west-1, authentication: {type: plaintext}}
flows:
  us-east->eu-west:
    topics: [orders, "log-.*"] # and more to come
    topics.exclude: [log-secret]
    mapping: {minimum.pollers: 2}
"""

ROWS = (",".join(COLUMNS), "orders,6,100,100000,1000,200000", "log-a,1,0,0,0,0")


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a configuration and rates."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "replication.yaml").write_text(CONFIGURATION)
    (tmp_path / "rates.csv").write_text("\n".join(ROWS))
    return tmp_path


@pytest.fixture
def plan(files: Path, command: Command) -> Callable[..., Answer]:  # noqa: ARG001 -- where it plans
    """Plans the flow by the file of rates, with some options."""
    return lambda *words: command("plan", "us-east->eu-west", "--rates", "rates.csv", *words)


def test_a_plan_names_the_options_the_topics_and_what_the_target_takes(plan: Callable[..., Answer]) -> None:
    answer = plan()

    assert answer.code == 0
    shown = answer.out
    assert shown.startswith("us-east->eu-west: 2 topics, 100.0 kB/s (peak 200.0 kB/s), rates from a file; p99 5.0 s")
    for words in (
        "recommended",
        "mappings on demand, window 4.0 s",
        "mappings provisioned, window 4.0 s, 1 poller at most",
        "schedule continuous, window 4.",
        "slower than 5.0 s",
        "MSK Replicator",
        "MM2 on MSK Connect",
        "orders",
        "log-a",
        "7 partitions",
        "transactions/s",
        "list prices of us-east-1",
    ):
        assert words in shown


def topic_plan(name: str, rate: float, batch: float, trigger: Trigger = SCHEDULE) -> TopicPlan:
    carried = TopicRate(
        topic=name,
        partitions=1,
        records_per_second=rate,
        bytes_per_second=rate * 1_000,
        average_record_bytes=1_000,
        peak_bytes_per_second=rate * 1_000,
        average_batch_bytes=batch,
    )
    return TopicPlan(
        rate=carried, trigger=trigger, mapping_dollars=1, schedule_dollars=1, mapping_p99=1, schedule_p99=1
    )


def test_small_batches_are_named_where_a_schedule_passes_them() -> None:
    """Those that cost most first; large ones, unknown ones and those of mappings are not."""
    topics = [
        topic_plan("a", 10, 1_000),
        topic_plan("b", 20, 1_000),
        topic_plan("large", 90, 200_000),
        topic_plan("unknown", 1, 0),
        topic_plan("mapped", 90, 1_000, MAPPING),
    ]

    found = small_batches(topics)

    factor = cpu_beside_large(1_000)
    said = (
        f"1.0 kB batches: {factor:.1f} times the CPU of 256.0 kB: raise `batch.size` and `linger.ms` of its producers"
    )
    assert found == [f"b: {said}", f"a: {said}"]
    many = [topic_plan(f"t{number}", 1, 1_000) for number in range(7)]
    assert small_batches(many)[5:] == ["and 2 topics more with small batches, see --json"]


def test_json_has_the_size_of_batches_where_it_is_known(plan: Callable[..., Answer]) -> None:
    Path("rates.csv").write_text(f"{ROWS[0]},average_batch_bytes\n{ROWS[1]},8200\n{ROWS[2]},0")

    topics = plan("--json").json["topics"]

    found = {each["topic"]: (each["average_batch_bytes"], each["batch_cpu_factor"]) for each in topics}
    assert found == {"orders": (8_200, cpu_beside_large(8_200)), "log-a": (None, None)}


def test_json_has_all_of_it(plan: Callable[..., Answer]) -> None:
    found = plan("--json", "--latency", "60").json

    assert found["latency_seconds"] == 60
    assert found["meets"] is True
    assert found["recommended"]["mapping"] == {"mode": "on-demand", "window_seconds": 59}
    assert found["recommended"]["dollars"] == pytest.approx(sum(found["recommended"]["parts"].values()))
    names = ["mappings_on_demand", "mappings_provisioned", "schedule_continuous", "schedule_by_interval"]
    assert [option["name"] for option in found["options"]] == names
    assert found["recommended"]["parts"]["metrics_alarms_logs"] > 0
    assert [topic["topic"] for topic in found["topics"]] == ["orders", "log-a"]
    assert found["target"]["partitions"] == 7
    assert found["target"]["new_partitions"] is None
    assert found["written"] is None


def test_a_latency_that_nothing_keeps_needs_the_operator(plan: Callable[..., Answer]) -> None:
    answer = plan("--latency", "0.1")

    assert (answer.code, "! no trigger keeps 0.1 s" in answer.out) == (1, True)


@pytest.mark.parametrize(
    ("rows", "words", "says"),
    [
        ((*ROWS, "orders,6"), (), "line 4: 2 values instead of 6"),
        ((*ROWS, "other,1,0,0,0,0"), (), "line 4: topic 'other': us-east->eu-west does not replicate it"),
        ((*ROWS, "log-secret,1,0,0,0,0"), (), "line 4: topic 'log-secret': us-east->eu-west does not replicate it"),
        (None, (), "rates.csv: the file of rates cannot be read"),
        (ROWS, ("--write", "replication.yaml"), "is not overwritten"),
        (ROWS, ("--write", "nowhere/new.yaml"), "nowhere/new.yaml: the file cannot be written"),
    ],
)
def test_a_file_that_is_wrong_is_bad_input_and_none_is_overwritten(
    rows: tuple[str, ...] | None, words: tuple[str, ...], says: str, plan: Callable[..., Answer]
) -> None:
    file = Path("rates.csv")
    file.unlink() if rows is None else file.write_text("\n".join(rows))

    answer = plan(*words)

    assert (answer.code, says in answer.err) == (2, True)
    assert Path("replication.yaml").read_text() == CONFIGURATION


def test_a_topic_that_the_flow_names_and_the_file_does_not_is_told(plan: Callable[..., Answer]) -> None:
    Path("rates.csv").write_text("\n".join([ROWS[0], ROWS[2]]))

    answer = plan()

    assert (answer.code, "without a row, and not in the plan: orders" in answer.out) == (0, True)


def test_the_file_that_is_written_is_the_configuration_with_the_plans_keys(
    files: Path, plan: Callable[..., Answer]
) -> None:
    assert plan("--write", "new.yaml", "--json").json["written"] == "new.yaml"

    written = (files / "new.yaml").read_text()
    assert (files / "replication.yaml").read_text() == CONFIGURATION
    settings = load(files / "new.yaml").flow("us-east->eu-west").settings
    assert (settings.mapping.mode, settings.mapping.maximum_batching_window_seconds) == ("on-demand", 4)
    assert settings.emit_checkpoints_interval_seconds == 5
    assert written == CONFIGURATION.replace(
        "{minimum.pollers: 2}", "{mode: on-demand, maximum.batching.window.seconds: 4}"
    ).replace("    topics: [", "    emit.checkpoints.interval.seconds: 5\n    topics: [")


def test_a_window_that_was_set_is_not_left_out_again(plan: Callable[..., Answer]) -> None:
    Path("replication.yaml").write_text(
        CONFIGURATION.replace("minimum.pollers: 2", "maximum.batching.window.seconds: 5")
    )

    options = plan("--latency", "1", "--json").json["options"]

    windows = [each["mapping"]["window_seconds"] for each in options if each["mapping"]]
    assert windows
    assert 0.5 not in windows


def test_what_the_flow_keeps_and_holds_is_in_the_price(plan: Callable[..., Answer]) -> None:
    prices = []
    for key in ("", "    offset.map.retention.days: 300\n"):
        Path("replication.yaml").write_text(CONFIGURATION + key)
        prices.append(plan("--json").json["recommended"]["parts"]["offset_map_storage"])

    assert prices[1] == pytest.approx(10 * prices[0])


def test_progress_is_a_line_each_time_where_no_one_watches(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False)
    wait = progress("2 topics of us-east", 60)

    wait(0.0)
    wait(0.01)

    told = capsys.readouterr()
    assert told.err.splitlines() == ["sampling 2 topics of us-east: 0 of 60 s"] * 2
    assert told.out == ""


def test_progress_is_one_line_that_is_renewed_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    wait = progress("a topic", 0.02)

    wait(0.01)
    wait(0.01)

    told = capsys.readouterr().err
    assert told.count("\r") == 4
    assert told.endswith("0 of 0 s\n")


def many_topics(keys: str = "", *, records: int = 10) -> None:
    """A flow of a hundred small topics of so many records a second, with these keys."""
    Path("replication.yaml").write_text(CONFIGURATION.replace("    mapping: {minimum.pollers: 2}\n", keys))
    rows = [f"log-{number},6,{records},{records}000,1000,{records}000" for number in range(100)]
    Path("rates.csv").write_text("\n".join([*ROWS, *rows]))


def test_a_schedule_is_written_so_that_the_flow_has_it(plan: Callable[..., Answer]) -> None:
    many_topics("    schedule:\n      interval.seconds: 600\n      run.in: source\n")

    found = plan("--write", "new.yaml", "--json").json["recommended"]["schedule"]

    flow = load("new.yaml").flow("us-east->eu-west")
    assert flow.triggers.of("orders") == flow.triggers.of("log-7") == "schedule"
    assert flow.triggers.of("heartbeats") == "mapping"
    assert flow.settings.schedule.continuous
    assert flow.settings.schedule.run_in == "source"
    assert (flow.settings.schedule.shards, flow.settings.schedule.memory_mb) == (found["shards"], found["memory_mb"])
    assert flow.settings.schedule.window_seconds == found["window_seconds"]


def test_an_interval_is_written_where_the_schedule_was_continuous(plan: Callable[..., Answer]) -> None:
    many_topics("    schedule: {continuous: true, maximum.bytes.per.second: 5000000}\n", records=1)

    found = plan("--write", "new.yaml", "--json", "--latency", "3700").json["recommended"]["schedule"]

    assert found["interval_seconds"] == 3_660
    schedule = load("new.yaml").flow("us-east->eu-west").settings.schedule
    assert not schedule.continuous
    assert (schedule.interval_seconds, schedule.maximum_bytes_per_second) == (3_660, 5_000_000)


def test_a_topic_that_was_scheduled_keeps_an_entry_when_it_gets_a_mapping(plan: Callable[..., Answer]) -> None:
    schedule = "    trigger.overrides: {orders: schedule}\n"
    Path("replication.yaml").write_text(CONFIGURATION + schedule)

    assert plan("--write", "new.yaml").code == 0

    flow = load("new.yaml").flow("us-east->eu-west")
    assert dict(flow.settings.trigger_overrides) == {"orders": "mapping"}


def test_the_flow_as_it_is_configured_stands_beside_the_recommendation(plan: Callable[..., Answer]) -> None:
    many_topics("    trigger: schedule\n    schedule: {interval.seconds: 120}\n")

    found = plan("--json").json["configured"]

    assert found["schedule"]["interval_seconds"] == 120
    assert found["mapping"] is None
    assert found["meets"] is False
    assert "as configured" in plan().out
