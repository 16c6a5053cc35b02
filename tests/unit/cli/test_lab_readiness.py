"""A command about a lab that does not run at this moment."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from cli.lab_state import LabNotRunning, read_lab_state


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
