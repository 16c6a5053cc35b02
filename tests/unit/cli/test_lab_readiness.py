"""A command about a lab that does not run at this moment."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from cli.lab_state import LabNotRunning, read_lab_state
from cli.main import main


@pytest.mark.parametrize(("pid", "passes"), [(os.getpid(), True), (None, False)])
def test_a_lab_that_starts_is_worth_a_retry_and_one_that_has_ended_is_not(
    tmp_path: Path, pid: int | None, *, passes: bool
) -> None:
    tables = dict.fromkeys(("offset_map", "lanes", "loss_ledger", "checkpoints", "control"), "table")
    state: dict[str, object] = {
        "ready": False,
        "pid": pid,
        "config": "replication.yaml",
        "clusters": {},
        "dynamodb": {"endpoint": "http://127.0.0.1:1", "pid": pid},
        "tables": tables,
        "functions": {},
        "mappings": [],
        "logs": "",
    }
    file = tmp_path / "state.json"
    file.write_text(json.dumps(state))

    with pytest.raises(LabNotRunning) as raised:
        read_lab_state(file)

    assert raised.value.retriable is passes


@pytest.mark.parametrize("lab_was_here", [True, False])
def test_a_command_without_a_lab_and_without_credentials_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, lab_was_here: bool
) -> None:
    """It said that DynamoDB did not answer, and that a retry may help, once the lab had ended."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    Path("replication.yaml").write_text((Path(__file__).parents[3] / "replication.example.yaml").read_text())
    if lab_was_here:
        Path(".lab").mkdir()
        Path(".lab/state.json").write_text("{}")

    code = main(["status"])

    said = capsys.readouterr().err
    assert "there are no credentials for AWS" in said
    assert "retry may help" not in said
    assert ("the lab is not running" in said) is lab_was_here
    assert "`make lab`" in said
    assert code == (1 if lab_was_here else 2)
