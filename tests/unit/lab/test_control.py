"""The scheduled functions in the lab: their flows, their settings, and what is refused before anything runs."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lab.cloud import Lab, function_name
from lab.esm.mapping_api import settings_of_create
from lab.functions.control import ControlPlane, Timer
from lab.functions.function import LambdaFunction
from lab.functions.invocation import Invocation, Status
from mirrorless.config import Configuration, load
from mirrorless.errors import ConfigurationError
from mirrorless.flow.settings import control_settings, decode_settings, pull_settings
from mirrorless.scheduled.functions import SCHEDULED
from tests.support.commands import Command, replication_yaml
from tests.support.waiting import eventually

EXAMPLES = sorted((Path(__file__).parents[3] / "docs" / "examples").glob("*.yaml"))


def configuration(keys: str = "topics: [orders]") -> Configuration:
    return load(replication_yaml(f"a->b: {{{keys}}}"))


def scheduled(trigger: str) -> Configuration:
    """A flow of a literal topic with an entry, and two shards."""
    entries = f"trigger.overrides: {{orders: {trigger}}}, schedule: {{interval.seconds: 120, shards: 2}}"
    return configuration(f"topics: [orders, bills], {entries}")


Deployed = Callable[..., tuple[ControlPlane, Mapping[str, object]]]


@pytest.fixture
def deployed(tmp_path: Path) -> Iterator[Deployed]:
    """Deploys a configuration's flow, with some overrides: the plane and its functions."""
    with ExitStack() as planes:

        def deploy(loaded: Configuration, **overrides: Any) -> tuple[ControlPlane, Mapping[str, object]]:
            plane = ControlPlane(folder=tmp_path, **overrides)
            planes.callback(plane.stop)
            return plane, plane.deploy(loaded.enabled_flows, variables={"A": "b"})

        yield deploy


def test_each_flow_has_two_scheduled_functions_with_a_timer_each(deployed: Deployed) -> None:
    plane, functions = deployed(configuration(), overrides={"refresh_topics_interval_seconds": 1})

    assert sorted(functions) == ["mirrorless-control-a_b", "mirrorless-refresh-topics-a_b"]
    assert plane.timers.keys() == functions.keys()
    assert all(isinstance(function, LambdaFunction) for function in functions.values())


def test_a_flow_at_home_in_another_region_has_a_standby_with_a_timer(deployed: Deployed) -> None:
    at_home = configuration("topics: [orders], function: {run.in: source}")
    plane, functions = deployed(at_home, overrides={"standby_after_seconds": 1})

    event = control_settings(json.loads(plane.timers["mirrorless-standby-a_b"].event))
    assert "mirrorless-standby-a_b" in functions
    assert (event.stands_by, event.standby_region, event.standby_after_seconds) == (True, "eu-west-1", 1)
    assert not control_settings(json.loads(plane.timers["mirrorless-control-a_b"].event)).stands_by


def test_scheduled_topics_have_a_reader_with_a_timer_for_each_shard(deployed: Deployed) -> None:
    plane, functions = deployed(
        scheduled("schedule"), overrides={"start": "latest"}, pull_overrides={"interval_seconds": 1}
    )

    shards = {"mirrorless-pull-0-a_b", "mirrorless-pull-1-a_b"}
    assert "mirrorless-pull-a_b" in functions
    assert plane.timers.keys() - functions.keys() == shards
    for number, name in enumerate(sorted(shards)):
        settings = pull_settings(json.loads(plane.timers[name].event))
        assert (settings.shard, settings.shards, settings.interval_seconds) == (number, 2, 1)
        assert (settings.flow.start, settings.flow.triggers.of("orders")) == ("latest", "schedule")


def test_schedules_get_other_settings_while_they_run(deployed: Deployed) -> None:
    plane, _ = deployed(scheduled("schedule"))

    plane.change(scheduled("mapping").enabled_flows[0])

    refresh = control_settings(json.loads(plane.timers["mirrorless-refresh-topics-a_b"].event))
    shard = pull_settings(json.loads(plane.timers["mirrorless-pull-1-a_b"].event))
    assert refresh.triggers.of("orders") == shard.flow.triggers.of("orders") == "mapping"


def test_a_reader_that_the_lab_was_started_without_is_refused(deployed: Deployed) -> None:
    plane, _ = deployed(configuration())

    with pytest.raises(ConfigurationError, match="mirrorless-pull-0-a_b"):
        plane.change(scheduled("schedule").enabled_flows[0])


def test_an_override_that_is_no_setting_is_refused(deployed: Deployed) -> None:
    with pytest.raises(ConfigurationError, match="refresh_topic_seconds"):
        deployed(configuration(), overrides={"refresh_topic_seconds": 1})


def test_a_lab_without_scheduled_functions_takes_neither_patterns_nor_scheduled_topics(tmp_path: Path) -> None:
    patterns = configuration("topics: ['orders-.*']")
    assert Lab(configuration=patterns, folder=tmp_path).flow_mappings == []
    for loaded, why in ((patterns, "patterns"), (scheduled("schedule"), "scheduled topics")):
        with pytest.raises(ConfigurationError, match=why):
            Lab(configuration=loaded, folder=tmp_path, control=False)


def test_stand_ins_of_one_broker_keep_one_replica_of_every_topic(tmp_path: Path) -> None:
    """Whichever topic a scheduled function makes: with more replicas than brokers it could not be made."""
    (flow,) = Lab(configuration=configuration(), folder=tmp_path).flows
    settings = flow.control_settings("forwarder")

    factors = {
        name: getattr(settings, name) for name in settings.__struct_fields__ if name.endswith("replication_factor")
    }
    assert len(factors) >= 3
    assert set(factors.values()) == {1}


EVENT = {"flow": {"flow": "a->b"}, "topics": ["käse"]}


@dataclass
class Function:
    """Answers as scripted, once it may."""

    status: Status = "success"
    error: Exception | None = None
    events: list[dict[str, Any]] = field(default_factory=list)
    may_answer: threading.Event = field(default_factory=threading.Event)

    def invoke(self, event: bytes) -> Invocation:
        """Remember the event, and answer when it is time."""
        self.events.append(json.loads(event))
        self.may_answer.wait()
        if self.error is not None:
            raise self.error
        return Invocation(status=self.status, payload=b'{"a": 1}', request_id="r", duration_ms=1.4)


@contextmanager
def running(function: Function, folder: Path, *, interval_s: float) -> Iterator[Timer]:
    timer = Timer(name="it", function=function, event=EVENT, interval_s=interval_s, log=folder / "logs" / "timer.jsonl")
    timer.start()
    try:
        yield timer
    finally:
        function.may_answer.set()
        timer.stop()


def lines(timer: Timer) -> list[dict[str, Any]]:
    """The lines of its log."""
    return [json.loads(line) for line in timer.log.read_text().splitlines()] if timer.log.exists() else []


def test_runs_start_at_once_and_though_others_last_and_when_asked_for(tmp_path: Path) -> None:
    function, often = Function(), Function()

    with running(function, tmp_path, interval_s=3600) as timer, running(often, tmp_path / "often", interval_s=0.01):
        eventually(lambda: function.events == [EVENT], "it is invoked at once, with its input")
        timer.start_once()
        eventually(lambda: len(function.events) > 1, "it is invoked once more")
        eventually(lambda: len(often.events) > 2, "three runs overlap")

    assert len(lines(timer)) == len(function.events)


def test_a_failed_run_is_logged_and_not_repeated(tmp_path: Path) -> None:
    function = Function(status="timeout")
    function.may_answer.set()

    with running(function, tmp_path, interval_s=3600) as timer:
        eventually(lambda: lines(timer), "a line in the log")

    assert len(function.events) == 1
    (line,) = lines(timer)
    assert line.pop("timestamp") > 1_600_000_000_000
    assert line == {"function": "it", "requestId": "r", "status": "timeout", "durationMs": 1, "payload": '{"a": 1}'}


def test_an_invoker_that_raises_does_not_stop_the_schedule(tmp_path: Path) -> None:
    function = Function(error=ValueError("too large"))
    function.may_answer.set()

    with running(function, tmp_path, interval_s=0.01) as timer:
        eventually(lambda: len(lines(timer)) > 1, "it goes on")

    assert {line["status"] for line in lines(timer)} == {"function_error"}
    assert "too large" in lines(timer)[0]["payload"]


def test_after_a_stop_nothing_runs_any_more(tmp_path: Path) -> None:
    function = Function()
    with running(function, tmp_path, interval_s=0.01) as timer:
        eventually(lambda: function.events, "it is invoked")

    assert len(lines(timer)) == len(function.events)
    assert not [thread for thread in threading.enumerate() if "run of it" in thread.name]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_lab_takes_every_example(path: Path, tmp_path: Path, command: Command) -> None:
    """Whatever a start would refuse: the file, a flow's settings, and the mapping of a topic."""
    answer = command("config", "check", "--lab", str(path))
    assert answer.code == 0, answer.err
    lab = Lab(configuration=load(path), folder=tmp_path)
    plane = ControlPlane(folder=tmp_path)

    functions = plane.deploy(lab.flows, variables={})

    for flow in lab.flows:
        assert {flow.resource_name(function.name) for function in SCHEDULED} <= functions.keys()
        assert decode_settings(flow.function_settings_json()).flow == str(flow.name)
        for topic in flow.template_topics:
            request = flow.mapping_request(topic) | {"FunctionName": function_name(flow)}
            assert settings_of_create(request)["Topics"] == [topic]
    plane.stop()
