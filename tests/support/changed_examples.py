"""An example's text with changes, and its first replication stack alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aws_cdk import App

from infra.deployment import FlowDeployment, plan
from infra.stacks.home import ReplicationStack
from mirrorless.config import load
from tests.support.assembly import CONTEXT, EXAMPLES
from tests.support.yaml_text import dump_yaml, load_yaml


def flows(example: str) -> tuple[FlowDeployment, ...]:
    """The plan of an example's flows."""
    return plan(load(EXAMPLES[example])).flows


def written(tmp_path: Path, example: str, *changes: tuple[str, str]) -> Path:
    """An example with changes in its text; each must find its place."""
    text = EXAMPLES[example].read_text()
    for before, after in changes:
        assert before in text, before
        text = text.replace(before, after)
    path = tmp_path / f"{example}.yaml"
    path.write_text(text)
    return path


def without_networks(tmp_path: Path, example: str) -> Path:
    """An example whose clusters have no `vpc`: their brokers are public."""
    document = load_yaml(EXAMPLES[example].read_text())
    for cluster in document["clusters"].values():
        cluster.pop("vpc", None)
    path = tmp_path / f"{example}.yaml"
    path.write_text(dump_yaml(document))
    return path


def replication(config: Path) -> dict[str, Any]:
    """The resources of a configuration's first replication stack, without the rest and its rules."""
    deployment = plan(load(config))
    app = App(context=dict(CONTEXT))
    stack = ReplicationStack(app, deployment=deployment, place=deployment.homes[0])
    resources: dict[str, Any] = app.synth().get_stack_by_name(stack.stack_name).template["Resources"]
    return resources


def of_type(resources: dict[str, Any], type_: str) -> dict[str, Any]:
    """Those of one type, by logical id."""
    return {name: body for name, body in resources.items() if body["Type"] == type_}
