"""Resources that a change of configuration or code changes, and those that it leaves alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from aws_cdk import aws_lambda as lambda_

from infra.constructs import flow_function
from infra.constructs.forwarder import settings
from infra.deployment import plan
from mirrorless.config import load
from tests.support.changed_examples import of_type, replication, written

MAPPING = "AWS::Lambda::EventSourceMapping"
FUNCTION = "AWS::Lambda::Function"


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return replication(written(tmp_path_factory.mktemp("before"), "active-passive"))


def versions(resources: dict[str, Any]) -> set[str]:
    return set(of_type(resources, "AWS::Lambda::Version"))


def without_versions(resources: dict[str, Any]) -> set[str]:
    return resources.keys() - versions(resources)


def test_new_settings_are_a_new_version_behind_the_same_alias(before: dict[str, Any], tmp_path: Path) -> None:
    after = replication(written(tmp_path, "active-passive", ("replication.factor: 3", "replication.factor: 2")))

    assert versions(after) != versions(before)
    assert without_versions(after) == without_versions(before)
    assert of_type(after, MAPPING) == of_type(before, MAPPING)


def test_new_code_is_a_new_version_behind_the_same_alias(
    before: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "forward.py").write_text("handler = None")
    monkeypatch.setattr(flow_function, "function_code", lambda *_: lambda_.Code.from_asset(str(tmp_path / "code")))
    after = replication(written(tmp_path, "active-passive"))

    assert versions(after) != versions(before)
    assert without_versions(after) == without_versions(before)
    assert of_type(after, MAPPING) == of_type(before, MAPPING)


def test_a_version_that_is_replaced_stays_for_the_invocations_that_run_on_it(before: dict[str, Any]) -> None:
    (version,) = of_type(before, "AWS::Lambda::Version").values()

    assert version["DeletionPolicy"] == "Retain"


def test_new_tags_publish_nothing(before: dict[str, Any], tmp_path: Path) -> None:
    """Lambda refuses to publish a version that changes neither code nor configuration."""
    after = replication(written(tmp_path, "active-passive", ("deployment:", "deployment:\n  tags: {team: streams}")))

    assert {"Key": "team", "Value": "streams"} in next(iter(of_type(after, FUNCTION).values()))["Properties"]["Tags"]
    assert versions(after) == versions(before)


def test_new_options_of_a_mapping_change_it_in_place(before: dict[str, Any], tmp_path: Path) -> None:
    change = (
        "    replication.factor: 3",
        "    replication.factor: 3\n    mapping: {batch.size: 500, maximum.pollers: 2}",
    )
    after = replication(written(tmp_path, "active-passive", change))
    ((name, old),) = of_type(before, MAPPING).items()
    new = after[name]["Properties"]

    changed = {key for key in new if new[key] != old["Properties"].get(key)}

    assert changed == {"BatchSize", "ProvisionedPollerConfig"}


def test_another_topic_leaves_the_mappings_of_the_others_alone(before: dict[str, Any], tmp_path: Path) -> None:
    after = replication(
        written(tmp_path, "active-passive", ('["orders.*", payments]', '[added, "orders.*", payments]'))
    )

    assert of_type(before, MAPPING).items() < of_type(after, MAPPING).items()


def test_a_diff_names_the_setting_that_changes(tmp_path: Path) -> None:
    old, new = (
        settings(plan(load(written(tmp_path, "active-passive", *changes))).flows[0])["settings"]
        for changes in ([], [("sync.group.offsets.enabled: true", "sync.group.offsets.enabled: false")])
    )

    assert {key for key in old if old[key] != new[key]} == {"sync.group.offsets.enabled"}


def test_a_mapping_reads_failed_records_before_its_function_names_any(tmp_path: Path) -> None:
    """A deployment changes the function first: turning the answer on must change no mapping."""
    place = "    replication.factor: 3"
    off, on = (
        replication(
            written(tmp_path, "active-passive", (place, f"    mapping: {{partial.batch.response: {value}}}\n{place}"))
        )
        for value in ("false", "true")
    )

    assert of_type(off, MAPPING) == of_type(on, MAPPING)
    assert of_type(off, FUNCTION) != of_type(on, FUNCTION)
