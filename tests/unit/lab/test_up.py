"""`python -m lab up` refuses what cannot run before anything starts."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import up
from lab.__main__ import main
from tests.support.commands import replication_yaml

CONFIGURATION = replication_yaml("us-east->eu-west: {topics: [orders]}", "eu-west->us-east: {topics: [orders]}")


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Signals are handled afterwards as they were before: the command sets handlers for its process."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(up, "_run", lambda *_: pytest.fail("it starts"))


def lab(folder: Path, configuration: str, *options: str) -> int:
    """The exit code of the command."""
    (config := folder / "replication.yaml").write_text(configuration)
    try:
        return main(["up", "--config", str(config), "--state", str(folder / "state.json"), *options])
    except SystemExit as exc:  # of argparse
        return int(exc.code or 0)


@pytest.mark.parametrize(
    ("configuration", "options", "said"),
    [
        (CONFIGURATION.replace("eu-west->us-east:", "eu-west->mars:"), (), "mars"),
        (CONFIGURATION.replace("topics:", "topic:"), (), "topic"),
        (CONFIGURATION, ("--kafka", "latest"), "latest"),
        (CONFIGURATION, ("--kafka", "3.8.0"), "3.8.0"),
        (CONFIGURATION, ("--partitions", "0"), "--partitions"),
        (CONFIGURATION, ("--state", "/proc/nowhere/state.json"), "/proc/nowhere/state.json"),
    ],
)
def test_what_cannot_run_is_refused_in_one_clear_line_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], configuration: str, options: tuple[str, ...], said: str
) -> None:
    code = lab(tmp_path, configuration, *options)

    told = capsys.readouterr()
    assert code == 2, told
    assert said in told.err
    assert not (tmp_path / "state.json").exists()


def test_two_labs_do_not_run_on_the_same_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    codes: list[int] = []
    monkeypatch.setattr(up, "_run", lambda *_: codes.append(lab(tmp_path, CONFIGURATION)))

    assert lab(tmp_path, CONFIGURATION) == 0
    assert codes == [2]
    assert "another lab runs on these data" in capsys.readouterr().err
