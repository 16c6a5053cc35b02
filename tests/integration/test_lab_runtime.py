"""The lab's function runtime behaves as Lambda does, under the real runtime interface client."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lab.functions.fault_orders import FAULTY_HANDLER, LAYER, FaultOrders
from lab.functions.function import FunctionError, LambdaFunction
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from lab.functions.invocation import Invocation

pytestmark = pytest.mark.integration

HANDLER = """
import os, sys, time
from pathlib import Path

kept = []
calls = 0

def handler(event, context):
    global calls
    calls += 1
    match event.get("do"):
        case "raise":
            raise ValueError("boo")
        case "exit":
            sys.exit(3)
        case "answer":
            return "x" * event["bytes"]
        case "hold":
            kept.append(bytearray(os.urandom(1024)) * (event["mb"] * 1024))
            time.sleep(30)  # holds its memory until it is killed for it
        case "wait":
            Path(event["file"] + ".waiting").touch()
            while not Path(event["file"]).exists():
                time.sleep(0.005)  # the function waits to be let go; its deadline ends it
            Path(event["file"] + ".done").touch()
        case "steps":
            from mirrorless.protocol import hooks
            for step in hooks.STEPS:
                hooks.reached(step)
    return {
        "calls": calls,
        "pid": os.getpid(),
        "path": sys.path,
        "variables": dict(os.environ),
        "cwd": os.getcwd(),
        "size": len(event.get("padding", "")),
        "left_ms": context.get_remaining_time_in_millis(),
        "request_id": context.aws_request_id,
        "arn": context.invoked_function_arn,
    }
"""

HOOKS = Path(__file__).parents[2] / "shared" / "mirrorless" / "protocol" / "hooks.py"

MakeFunction = Callable[..., LambdaFunction]


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle without dependencies, and with the one module of the package that the fault layer watches."""
    folder = tmp_path / "bundle"
    (folder / "mirrorless" / "protocol").mkdir(parents=True)
    (folder / "forward.py").write_text(HANDLER)
    (folder / "broken.py").write_text("import not_in_the_bundle\n")
    (folder / "mirrorless" / "__init__.py").touch()
    (folder / "mirrorless" / "protocol" / "__init__.py").touch()
    (folder / "mirrorless" / "protocol" / "hooks.py").write_bytes(HOOKS.read_bytes())
    return folder


@pytest.fixture
def make(bundle: Path, tmp_path: Path) -> Iterator[MakeFunction]:
    made: list[LambdaFunction] = []

    def make(**changes: object) -> LambdaFunction:
        described: dict[str, object] = {
            "name": "forward",
            "bundle": bundle,
            "handler": "forward.handler",
            "variables": {"FLOW": "us-east->eu-west"},
            "timeout_seconds": 20.0,
            "folder": tmp_path / "logs",
        }
        made.append(LambdaFunction(**{**described, **changes}))  # type: ignore[arg-type]  # the defaults above are typed as object
        return made[-1]

    yield make
    for function in made:
        function.stop()
        assert function.environments == []


def ask(function: LambdaFunction, **event: object) -> Invocation:
    return function.invoke(json.dumps(event).encode())


def said(invocation: Invocation) -> dict[str, object]:
    answer = json.loads(invocation.payload)
    assert isinstance(answer, dict)
    return answer


def state_in_proc(pid: int) -> str:
    """The kernel's letter: S sleeping, R running, T stopped, Z dead and not reaped; X when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def until_dead(pid: int) -> None:
    eventually(lambda: state_in_proc(pid) in "ZX")


def test_a_handler_has_the_context_the_path_and_the_variables_that_lambda_gives_and_no_others(
    make: MakeFunction, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dependency that is missing in the bundle must fail here, not after deployment."""
    monkeypatch.setenv("LEAKED", "yes")

    invocation = ask(make())

    answer = said(invocation)
    assert invocation.status == "success"
    assert answer["request_id"] == invocation.request_id
    assert answer["arn"] == "arn:aws:lambda:us-east-1:000000000000:function:forward"
    assert answer["cwd"] == str(bundle)
    left_ms = answer["left_ms"]
    assert isinstance(left_ms, int)
    assert 15_000 < left_ms <= 20_000
    variables = answer["variables"]
    assert isinstance(variables, dict)
    assert variables["FLOW"] == "us-east->eu-west"
    assert variables["LAMBDA_TASK_ROOT"] == str(bundle)
    assert variables["AWS_LAMBDA_FUNCTION_MEMORY_SIZE"] == "1024"
    assert not variables.keys() & {"LEAKED", "HOME"}
    assert not [name for name, value in variables.items() if sys.prefix in value]
    path = answer["path"]
    assert isinstance(path, list)
    assert not [place for place in path if "site-packages" in place or "/.venv/" in place]


def test_a_variable_that_lambda_reserves_is_refused(make: MakeFunction) -> None:
    with pytest.raises(ValueError, match="AWS_REGION"):
        make(variables={"AWS_REGION": "eu-west-1"})


@pytest.mark.parametrize(
    ("do", "status", "type_", "message", "calls"),
    [
        pytest.param("raise", "function_error", "ValueError", "boo", 2, id="an error: its environment stays warm"),
        pytest.param("exit", "exited", "Runtime.ExitError", "exit status 3", 1, id="an exit: a cold start follows"),
    ],
)
def test_a_handler_that_fails_is_an_outcome(
    make: MakeFunction, *, do: str, status: str, type_: str, message: str, calls: int
) -> None:
    function = make()

    failed = ask(function, do=do)

    assert failed.status == status
    assert said(failed)["errorType"] == type_
    assert message in str(said(failed)["errorMessage"])
    assert said(ask(function))["calls"] == calls
    assert function.cold_starts == 3 - calls


def test_a_function_that_cannot_be_imported_says_why(make: MakeFunction) -> None:
    function = make(handler="broken.handler")

    failed = ask(function)
    with pytest.raises(FunctionError, match="not_in_the_bundle"):
        function.initialise()

    assert failed.status == "function_error"
    assert said(failed)["errorType"] == "Runtime.ImportModuleError"


def test_a_deadline_kills(make: MakeFunction, tmp_path: Path) -> None:
    function = make(timeout_seconds=0.5)
    function.initialise()
    pid = function.environments[0].pid

    late = ask(function, do="wait", file=str(tmp_path / "never"))

    assert late.status == "timeout"
    assert "Task timed out after 0.50 seconds" in str(said(late)["errorMessage"])
    assert 500 <= late.duration_ms < 2000
    assert not Path(f"/proc/{pid}").exists()
    assert function.environments == []


def test_a_zombie_runs_on_until_it_is_stopped_and_its_answer_is_dropped(make: MakeFunction, tmp_path: Path) -> None:
    function = make(timeout_seconds=0.5, zombies=True, concurrency=1)
    go = tmp_path / "go"

    late = ask(function, do="wait", file=str(go))
    [zombie] = function.environments
    successor = ask(function)

    assert late.status == "timeout"
    assert zombie.state == "zombie"
    assert successor.status == "success"
    assert said(successor)["pid"] != zombie.pid
    assert not Path(f"{go}.done").exists()
    go.touch()
    eventually(Path(f"{go}.done").exists)
    eventually(lambda: zombie not in function.environments)
    assert said(ask(function))["calls"] == 2

    ask(function, do="wait", file=str(tmp_path / "never"))
    (zombie,) = (each for each in function.environments if each.state == "zombie")
    function.stop()
    assert not Path(f"/proc/{zombie.pid}").exists()
    assert ask(function).status == "throttled"


def test_an_environment_is_frozen_between_invocations(make: MakeFunction, tmp_path: Path) -> None:
    """Clients that keep connections by background threads find those threads asleep, as in Lambda."""
    function = make()
    function.initialise()
    [environment] = function.environments
    eventually(lambda: state_in_proc(environment.pid) == "T")
    go = tmp_path / "go"

    with ThreadPoolExecutor(1) as caller:
        running = caller.submit(ask, function, do="wait", file=str(go))
        eventually(Path(f"{go}.waiting").exists)
        thawed = state_in_proc(environment.pid)
        go.touch()
        assert running.result().status == "success"

    assert thawed in "SR"
    eventually(lambda: state_in_proc(environment.pid) == "T")


def test_a_dead_environment_gets_no_event_even_before_its_death_was_noticed(make: MakeFunction) -> None:
    """An event sent while it is still dying is an exit; one sent later must find another environment."""
    function = make()
    function.initialise()
    [environment] = function.environments

    with environment._changed:  # the watching thread must wait to tell
        os.kill(environment.pid, signal.SIGKILL)
        until_dead(environment.pid)

        assert environment.state == "idle"
        assert not environment.claim()


def test_an_idle_environments_death_is_noticed_without_an_event_and_another_takes_its_place(
    make: MakeFunction,
) -> None:
    function = make()
    function.initialise()
    before = function.environments[0].pid

    os.kill(before, signal.SIGKILL)

    eventually(lambda: function.environments == [])
    assert said(ask(function))["pid"] != before


def test_an_environment_killed_at_work_is_an_exit(make: MakeFunction, tmp_path: Path) -> None:
    function = make()
    with ThreadPoolExecutor(1) as caller:
        running = caller.submit(ask, function, do="wait", file=str(tmp_path / "go"))
        eventually((tmp_path / "go.waiting").exists)

        os.kill(function.environments[0].pid, signal.SIGKILL)

        exited = running.result(timeout=5)
    assert exited.status == "exited"
    assert "signal: killed" in str(said(exited)["errorMessage"])
    assert ask(function).status == "success"


def test_concurrent_events_get_an_environment_each_and_one_too_many_is_throttled(
    make: MakeFunction, tmp_path: Path
) -> None:
    function = make(concurrency=2)
    files = [tmp_path / "one", tmp_path / "two"]
    with ThreadPoolExecutor(2) as callers:
        running = [callers.submit(ask, function, do="wait", file=str(file)) for file in files]
        for file in files:
            eventually(Path(f"{file}.waiting").exists)

        refused = ask(function)

        for file in files:
            file.touch()
        assert {call.result().status for call in running} == {"success"}
    assert refused.status == "throttled"
    assert function.cold_starts == 2
    assert ask(function).status == "success"


def test_many_callers_at_once_lose_no_event(make: MakeFunction) -> None:
    function = make(concurrency=4)
    counts: dict[object, int] = {}
    lock = threading.Lock()

    def call(number: int) -> None:
        invocation = ask(function, number=number)
        assert invocation.status == "success"
        with lock:
            pid = said(invocation)["pid"]
            counts[pid] = counts.get(pid, 0) + 1

    with ThreadPoolExecutor(4) as callers:
        list(callers.map(call, range(400)))

    assert sum(counts.values()) == 400
    assert len(counts) == function.cold_starts <= 4
    assert {environment.pid for environment in function.environments} == counts.keys()


def test_an_event_and_an_answer_of_six_megabytes_pass_and_more_does_not(make: MakeFunction) -> None:
    function = make()
    empty = len(json.dumps({"padding": ""}))

    largest = ask(function, padding="x" * (6 * 1024 * 1024 - empty))
    answer = ask(function, do="answer", bytes=6_291_556 - len('""'))
    too_large = ask(function, do="answer", bytes=6_291_556 - len('""') + 1)

    assert said(largest)["size"] == 6 * 1024 * 1024 - empty
    assert len(answer.payload) == 6_291_556
    assert too_large.status == "function_error"
    assert said(too_large)["errorType"] == "Function.ResponseSizeTooLarge"
    with pytest.raises(ValueError, match="6291457 bytes"):
        function.invoke(b"x" * 6_291_457)


def test_a_function_beyond_its_memory_is_killed(make: MakeFunction) -> None:
    function = make(memory_mb=128)

    killed = ask(function, do="hold", mb=300)

    assert killed.status == "exited"
    assert "signal: killed" in str(said(killed)["errorMessage"])


def test_new_variables_reach_the_environments_that_start_after_them(make: MakeFunction) -> None:
    function = make()
    old = said(ask(function))["pid"]

    function.set_variables({"FLOW": "eu-west->us-east"})
    function.recycle()
    answer = said(ask(function))

    assert answer["pid"] != old
    assert isinstance(answer["variables"], dict)
    assert answer["variables"]["FLOW"] == "eu-west->us-east"


def test_a_busy_environment_finishes_its_event_before_it_is_thrown_away(make: MakeFunction, tmp_path: Path) -> None:
    function = make()
    go = tmp_path / "go"
    with ThreadPoolExecutor(1) as caller:
        running = caller.submit(ask, function, do="wait", file=str(go))
        eventually(Path(f"{go}.waiting").exists)

        function.recycle()
        go.touch()

        assert running.result().status == "success"
    assert function.environments == []


def test_a_small_event_costs_the_lab_about_a_millisecond(make: MakeFunction) -> None:
    """Nagle's algorithm alone would make it forty. The bound is wide because tests share two cores."""
    function = make()
    function.initialise()

    durations = sorted(ask(function, do="answer", bytes=2).duration_ms for _ in range(200))

    assert durations[100] < 10


@pytest.fixture
def faults(tmp_path: Path) -> FaultOrders:
    return FaultOrders(tmp_path / "faults")


@pytest.fixture
def faulty(make: MakeFunction, faults: FaultOrders) -> LambdaFunction:
    return make(handler=FAULTY_HANDLER, layers=[LAYER], variables=faults.variables, timeout_seconds=1.0, zombies=True)


def test_an_order_is_carried_out_once_at_its_step_and_without_one_the_watched_handler_is_the_handler(
    faulty: LambdaFunction, faults: FaultOrders
) -> None:
    order = faults.order("kill", "prepared")
    assert faults.pending() == [order]
    assert ask(faulty, do="steps").status == "exited"
    assert faults.pending() == []
    faults.await_claimed(order, seconds=0)

    assert ask(faulty, do="steps").status == "success"

    faults.order("raise", "committed")
    failed = ask(faulty, do="steps")
    assert failed.status == "function_error"
    assert "at step committed" in str(said(failed)["errorMessage"])


def test_a_stopped_environment_becomes_a_zombie_that_can_be_resumed(
    faulty: LambdaFunction, faults: FaultOrders
) -> None:
    faults.order("stop", "produced")

    late = ask(faulty, do="steps")
    [pid] = faults.stopped()
    successor = ask(faulty, do="steps")

    assert late.status == "timeout"
    assert state_in_proc(pid) == "T"
    assert successor.status == "success"
    assert faults.resume_stopped(pid)
    eventually(lambda: pid not in [environment.pid for environment in faulty.environments])
    assert faults.stopped() == []


def test_an_order_taken_back_is_not_carried_out(faulty: LambdaFunction, faults: FaultOrders) -> None:
    assert faults.withdraw(faults.order("kill", "position"))

    assert ask(faulty, do="steps").status == "success"
    with pytest.raises(TimeoutError, match=r"kill\.position\.0"):
        faults.await_claimed("kill.position.0", seconds=0.05)
