"""`acl revoke`: what it deletes where flows share a target, on the small flow of the golden files."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from cli.deployment import DeployedFlows
from cli.main import main
from mirrorless.lane import FlowName
from mirrorless.topics.acl_sync import AclDocument
from tests.frozen.small_flow import FLOW, MOVED, small_flow


@pytest.mark.parametrize("other_failed_over", [False, True])
def test_what_a_failover_of_another_flow_to_the_same_target_needs_is_not_revoked_and_reported(
    *, other_failed_over: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = FlowName("silent", "eu-west")
    document = AclDocument(staged=(MOVED,) if other_failed_over else ())
    with small_flow(tmp_path):
        stores = DeployedFlows(config=Path("replication.yaml")).stores(other)
        stores.documents.write(other, {"acls/failover": msgspec.json.encode(document)})

        main(["acl", "revoke", str(FLOW), "--failover", "--lab", "lab.json", "--json"])

    said = json.loads(capsys.readouterr().out)
    deleted, kept = ([acl["principal"] for acl in said[key]] for key in ("delete", "kept"))
    assert deleted == ([] if other_failed_over else ["User:moved"])
    assert kept == (["User:shop", "User:moved"] if other_failed_over else ["User:shop"])
