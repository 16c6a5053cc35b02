"""Configurations that are synthesized with the examples: 2,000 topics, and a second deployment."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from mirrorless.config import yaml_source

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

TOPICS: Final = 2_000
STACKS: Final = 8


def cases(example: Path) -> Mapping[str, str]:
    """Return the text of each, by its name. Args: example: what they are made from."""
    document = yaml_source.read(example.read_text(encoding="utf-8"), origin=str(example)).data
    flow = next(iter(document["flows"]))
    names = [f"team-{number % 20:02}.service-{number % 31:02}.event-{number:04}" for number in range(TOPICS)]
    many = {flow: {**document["flows"][flow], "topics": names}}
    return {
        "many-topics": _text({**document, "flows": many, "deployment": {"mapping.stacks": STACKS}}),
        "second-deployment": _text({**document, "deployment": {"name": "second"}}),
    }


def _text(document: Mapping[str, Any]) -> str:
    return f"{json.dumps(document, indent=1)}\n"
