"""The keys of a lab: a folder with a file for each, in the place of Secrets Manager and KMS."""

from __future__ import annotations

import base64
import json
import os
from dataclasses import dataclass
from pathlib import Path

KEY_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class LabKeys:
    """The folder. What is in it stays: another lab on the same data opens what this one has sealed."""

    folder: Path

    def make(self, name: str, version: int) -> None:
        """Make the versions of a key up to this one that are not there."""
        there = self.material(name)
        made = there | {each: os.urandom(KEY_BYTES) for each in range(1, version + 1) if each not in there}
        text = json.dumps({str(each): base64.b64encode(material).decode() for each, material in made.items()})
        self.folder.mkdir(parents=True, exist_ok=True)
        draft = self.folder / f"{name}.draft"
        draft.write_text(text)
        draft.replace(self.folder / f"{name}.json")

    def material(self, name: str) -> dict[int, bytes]:
        """The versions of a key; none of one that is not there."""
        path = self.folder / f"{name}.json"
        found = json.loads(path.read_text()) if path.exists() else {}
        return {int(version): base64.b64decode(text) for version, text in found.items()}
