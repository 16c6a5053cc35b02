"""Errors of the command: an exit code, and one line or one JSON object, never a traceback."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from cli.main import main
from mirrorless.flow.naming import CLIENT_LOG_VARIABLE


@pytest.mark.parametrize("offset", ["x", "-1", "1.5", "", "٣", "1_000", "9223372036854775808"])
def test_what_is_not_an_offset_is_bad_input(offset: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["translate", "us-east->eu-west", "orders", "0", "--", offset])

    assert ended.value.code == 2
    assert "OFFSET" in capsys.readouterr().err


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


def test_the_error_for_an_unknown_command_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["translat"])

    assert ended.value.code == 2
    assert "translate" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["status"],
        ["translate", "us-east->eu-west", "orders", "0", "1"],
        ["lanes", "stopped"],
        ["lanes", "resume", "us-east->eu-west", "orders", "0"],
        ["lanes", "quarantine", "us-east->eu-west", "orders", "0", "1"],
        ["lanes", "reset", "us-east->eu-west", "orders", "0", "--to", "0", "--reason", "because"],
        ["losses"],
        ["groups", "us-east->eu-west"],
        ["topics", "us-east->eu-west"],
        ["acl", "plan", "us-east->eu-west"],
    ],
)
@pytest.mark.parametrize("place", ["--lab", "--config"])
def test_a_missing_file_is_bad_input_for_every_command(
    words: list[str], place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "nowhere"

    assert main([*words, place, str(missing)]) == 2
    errors = capsys.readouterr().err
    assert str(missing) in errors
    assert errors.count("\n") == 1

    assert main([*words, place, str(missing), "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert str(missing) in error["where"]
    assert error["retriable"] is False
    assert error["hint"]


@pytest.mark.parametrize("content", ["", "[]", "null", "{}", '{"clusters": {}}', '{"clusters": '])
def test_a_file_that_is_not_a_labs_state_is_bad_input(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The operator names the state file; a wrong one must not end in a traceback."""
    state = tmp_path / "state.json"
    state.write_text(content)

    assert main(["status", "--lab", str(state)]) == 2
    assert str(state) in capsys.readouterr().err


def test_what_is_not_a_reset_destination_is_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["lanes", "reset", "us-east->eu-west", "orders", "0", "--to", "yesterday", "--reason", "because"])

    assert ended.value.code == 2
    assert "--to" in capsys.readouterr().err


def test_a_command_on_a_terminal_keeps_the_kafka_clients_own_lines_from_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CLIENT_LOG_VARIABLE, "5")
    monkeypatch.delenv(CLIENT_LOG_VARIABLE)  # and again when the test is over
    monkeypatch.setattr(sys, "argv", ["mirrorless", "config", "check", str(tmp_path / "none.yaml")])

    assert main() == 2

    assert os.environ[CLIENT_LOG_VARIABLE] == "0"
