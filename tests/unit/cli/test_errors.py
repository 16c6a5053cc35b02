"""Errors of the command: an exit code, and one line or one JSON object, never a traceback."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from pathlib import Path

import pytest

from cli.main import main
from cli.output import say_traceback
from mirrorless.flow.naming import CLIENT_LOG_VARIABLE
from tests.support.commands import Command

FLOW = "us-east->eu-west"
NO_OFFSETS = ("x", "-1", "1.5", "", "٣", "1_000", "9223372036854775808")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        *((f"translate '{FLOW}' orders 0 -- '{offset}'", "OFFSET") for offset in NO_OFFSETS),
        ("translat", "translate"),
        (f"lanes reset '{FLOW}' orders 0 --to yesterday --reason because", "--to"),
        (f"verify start '{FLOW}' --into x", "unrecognized arguments: --into"),
        (f"verify start '{FLOW}' --size 0", "whole number from 1"),
        (f"backfill start '{FLOW}' --from yesterday", "no place in a topic's history"),
        (f"reconcile start '{FLOW}' --policy burn", "is no policy"),
        (f"plan '{FLOW}' --latency 0", "'0' is no number of seconds"),
        (f"plan '{FLOW}' --latency soon", "'soon' is no number of seconds"),
        (f"plan '{FLOW}' --sample-seconds nan", "'nan' is no number of seconds"),
    ],
)
def test_what_the_parser_does_not_take_is_bad_input_and_nothing_is_made(
    words: str, said: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    answer = command(*shlex.split(words))

    assert (answer.code, said in answer.err) == (2, True), answer
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_command_without_a_traceback_and_with_an_exit_code_of_its_own(
    number: signal.Signals, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def killed(_: object) -> int:
        os.kill(os.getpid(), number)
        raise AssertionError("it goes on")

    monkeypatch.setattr("cli.losses.run", killed)
    monkeypatch.setattr(sys, "argv", ["mirrorless", "losses"])
    monkeypatch.setenv(CLIENT_LOG_VARIABLE, "0")
    monkeypatch.setenv("MIRRORLESS_LAB", "")
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets what runs in its background ignore it
    try:
        assert main() == code
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    "words",
    [
        "status",
        f"translate '{FLOW}' orders 0 1",
        "lanes stopped",
        f"lanes resume '{FLOW}' orders 0",
        f"lanes quarantine '{FLOW}' orders 0 1",
        f"lanes reset '{FLOW}' orders 0 --to 0 --reason because",
        "losses",
        f"groups '{FLOW}'",
        f"topics '{FLOW}'",
        f"acl plan '{FLOW}'",
    ],
)
@pytest.mark.parametrize("place", ["--lab", "--config"])
def test_a_missing_file_is_bad_input_for_every_command(
    words: str, place: str, tmp_path: Path, command: Command
) -> None:
    missing = str(tmp_path / "nowhere")

    in_words = command(*shlex.split(words), place, missing)
    in_json = command(*shlex.split(words), place, missing, "--json")

    assert (in_words.code, missing in in_words.err, in_words.err.count("\n")) == (2, True, 1)
    error = in_json.json["error"]
    assert (in_json.code, missing in error["where"], error["retriable"]) == (2, True, False)
    assert error["hint"]


@pytest.mark.parametrize("content", ["", "[]", "null", "{}", '{"clusters": {}}', '{"clusters": '])
def test_a_file_that_is_not_a_labs_state_is_bad_input(content: str, tmp_path: Path, command: Command) -> None:
    """The operator names the state file; a wrong one must not end in a traceback."""
    (state := tmp_path / "state.json").write_text(content)

    answer = command("status", "--lab", str(state))

    assert (answer.code, str(state) in answer.err) == (2, True)


def test_a_command_on_a_terminal_keeps_the_kafka_clients_own_lines_from_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CLIENT_LOG_VARIABLE, "5")
    monkeypatch.delenv(CLIENT_LOG_VARIABLE)  # and again when the test is over
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    monkeypatch.setattr(sys, "argv", ["mirrorless", "config", "check", str(tmp_path / "none.yaml")])

    assert main() == 2

    assert os.environ[CLIENT_LOG_VARIABLE] == "0"
    assert sys.excepthook is say_traceback, "what nobody has foreseen may have the words of a broker, too"
