"""The operator's commands, run in this process, and the text of the configuration that they read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cli.main import main
from mirrorless.flow.settings import Tables


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command printed, and its exit code, also where its parser refused it."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one JSON value of its output."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """The JSON values of its output, one on each line."""
        return [json.loads(line) for line in self.out.splitlines()]


@dataclass(frozen=True, slots=True)
class Command:
    """Runs `mirrorless` with some words; what was printed before is not in the answer."""

    capsys: pytest.CaptureFixture[str]

    def __call__(self, *words: str) -> Answer:
        """Run it."""
        self.capsys.readouterr()
        try:
            code = main(words)
        except SystemExit as ended:
            code = int(ended.code or 0)
        return Answer(code, *self.capsys.readouterr())


def lab_state(
    folder: Path,
    flow: str,
    bootstrap: Mapping[str, str],
    dynamodb: str,
    tables: Tables,
    **more: Any,
) -> Path:
    """The state file of a lab of one flow, whose configuration is written beside it.

    Args:
        folder: of both.
        flow: as `replication_yaml` has it.
        bootstrap: the address of each cluster.
        dynamodb: its endpoint.
        tables: that are there.
        more: further keys.
    """
    config, path = folder / "replication.yaml", folder / "state.json"
    config.write_text(replication_yaml(flow))
    state = {
        "config": str(config),
        "clusters": {alias: {"bootstrap": address} for alias, address in bootstrap.items()},
        "dynamodb": {"endpoint": dynamodb},
        "tables": msgspec.to_builtins(tables),
    }
    path.write_text(json.dumps(state | more))
    return path


def replication_yaml(*flows: str, clusters: dict[str, str] | None = None, rest: str = "") -> str:
    """The text of a configuration.

    Args:
        flows: each as `a->b: {…}`; without any, one of the topic `orders` from us-east to eu-west.
        clusters: the keys of each, by alias; without them those of the flows, which no client reaches, in two regions.
        rest: what stands behind the flows.
    """
    named = flows or ("us-east->eu-west: {topics: [orders]}",)
    if clusters is None:
        aliases = dict.fromkeys(alias for each in named for alias in each.partition(":")[0].split("->"))
        regions = ["us-east-1", *["eu-west-1"] * len(aliases)]
        keys = "bootstrap.servers: [127.0.0.1:1], region: {}, account: '123456789012'"
        clusters = {alias: keys.format(region) for alias, region in zip(aliases, regions, strict=False)}
    sides = [f"  {alias}: {{{keys}}}" for alias, keys in clusters.items()]
    return "\n".join(["clusters:", *sides, "flows:", *(f"  {each}" for each in named), rest, ""])
