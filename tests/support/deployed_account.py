"""What AWS has before a deployment, in memory; and `make deploy` on it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infra import deploy
from infra.deployed import DeployedStack
from infra.deployment import Location
from infra.guard.verdict import ApplicationState
from infra.synth import stacks_in
from mirrorless.errors import Retriable
from tests.support.assembly import Assembly

CDK_CODE = 77
"""The exit code of the CDK's command line, where it is called."""


@dataclass
class Account:
    """Stacks and their templates, the state of every application, and the places that let nobody look."""

    there: Sequence[DeployedStack] = ()
    templates: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    state: str | None = None
    closed: frozenset[Location] = frozenset()
    destroyed: list[str] = field(default_factory=list)

    def stacks(self, place: Location) -> list[DeployedStack]:
        """See `infra.deployed.Deployed`."""
        if place in self.closed:
            raise Retriable("denied", where=str(place))
        return [each for each in self.there if each.place == place]

    def template(self, stack: str, _: Location) -> Mapping[str, Any] | None:
        """See `infra.deployed.Deployed`."""
        return self.templates.get(stack)

    def application(self, name: str, place: Location) -> ApplicationState | None:
        """See `infra.deployed.Deployed`."""
        return ApplicationState(id=f"00f-{name}", state=self.state, region=place.region) if self.state else None

    def destroy(self, stack: DeployedStack) -> None:
        """See `infra.deployed.Deployed`."""
        self.destroyed.append(stack.name)


def templates_of(assembly: Assembly) -> dict[str, dict[str, Any]]:
    """The templates of an assembly, by the names that its stacks have in their places."""
    stacks = stacks_in(assembly.folder, assembly.deployment)
    return {each.name: json.loads(Path(each.template).read_text()) for each in stacks}


def deployer(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """`make deploy` of a configuration where an account has something, without the CDK's command line."""
    monkeypatch.setattr("infra.deploy.cdk.install", lambda: None)
    monkeypatch.setattr(deploy, "network_findings", lambda *_: iter(()))

    def run(argv: list[str], **_: object) -> SimpleNamespace:
        assert "--import-existing-resources" in argv
        return SimpleNamespace(returncode=CDK_CODE)

    monkeypatch.setattr("infra.deploy.subprocess.run", run)

    def of(account: Account, config: Path, out: Path, *arguments: str, synthesized: Assembly | None = None) -> int:
        if synthesized:
            monkeypatch.setattr(deploy, "synth", lambda *_: synthesized.deployment)
        monkeypatch.setattr(deploy, "Lookups", lambda: account)
        monkeypatch.setattr(sys, "argv", ["deploy", str(config), "--out", str(out), *arguments])
        return deploy.main()

    return of
