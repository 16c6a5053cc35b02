"""The stacks of an example, synthesized once per test session and read as plain JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from infra.deployment import Deployment, Location, plan
from infra.guard.templates import Resource
from mirrorless.config import load

REPOSITORY = Path(__file__).parents[2]
EXAMPLES: Mapping[str, Path] = {
    "active-active": REPOSITORY / "replication.example.yaml",
    **{path.stem: path for path in sorted((REPOSITORY / "docs" / "examples").glob("*.yaml"))},
}
CONTEXT: Mapping[str, Any] = json.loads((REPOSITORY / "cdk.json").read_text())["context"]


@dataclass(frozen=True)
class Assembly:
    """A cloud assembly on disk, and the plan it was made from."""

    folder: Path
    deployment: Deployment

    @cached_property
    def templates(self) -> Mapping[str, Mapping[str, Any]]:
        """Every template by its stack's name."""
        suffix = ".template.json"
        return {
            path.name.removesuffix(suffix): json.loads(path.read_text())
            for path in sorted(self.folder.glob(f"*{suffix}"))
        }

    def template(self, kind: str, place: Location) -> Mapping[str, Any]:
        """The template of one stack."""
        return self.templates[self.deployment.artifact_id(kind, place)]

    def resources(self, type_: str = "", *, stack: str = "") -> Iterator[Resource]:
        """Every resource of a type, in every stack whose name begins so."""
        for name, template in self.templates.items():
            for id_, body in template.get("Resources", {}).items():
                if name.startswith(stack) and type_ in {"", body["Type"]}:
                    yield Resource(name, id_, body)

    def only(self, type_: str, *, stack: str = "", **properties: Any) -> Resource:
        """The one resource of a type that has these properties."""
        every = self.resources(type_, stack=stack)
        (found,) = (each for each in every if properties.items() <= each.properties.items())
        return found


def assemble(config: Path, folder: Path, **context: Any) -> Assembly:
    """Synthesize a configuration into a folder, with the context of cdk.json and this.

    Raises:
        RuntimeError: a rule is broken that is not excused; what and where stands in `<folder>/validation-report.json`.
    """
    from aws_cdk import App  # noqa: PLC0415 -- starts Node: only for who synthesizes, not for all who collect tests

    from infra.app import build  # noqa: PLC0415 -- same

    deployment = plan(load(config))
    build(App(outdir=str(folder), context={**CONTEXT, **context}), deployment).synth()
    return Assembly(folder, deployment)
