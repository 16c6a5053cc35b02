"""Resources of an example's synthesized stacks, each with a digest of its properties."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.support.assembly import EXAMPLES, Assembly, assemble

_ASSET = re.compile(r"\b[0-9a-f]{64}\b")
_VERSION = re.compile(r"(?<=CurrentVersion[0-9A-F]{8})[0-9a-f]{32}\b")
"""Hashes of an asset's contents, and of a function with its asset: any edit of the code makes others."""

_BODY = (
    "Properties",
    "DependsOn",
    "Condition",
    "DeletionPolicy",
    "UpdateReplacePolicy",
    "UpdatePolicy",
    "CreationPolicy",
)
"""Of a resource, what CloudFormation acts on. `Metadata` holds paths of constructs, which the code may name anew."""


def texts() -> dict[str, str]:
    """The stacks of every example, by the golden file's name. Synthesizes each: some seconds apiece."""
    found = {}
    for example, config in EXAMPLES.items():
        with TemporaryDirectory() as folder:
            found[name_of(example)] = text_of(assemble(config, Path(folder)))
    return found


def name_of(example: str) -> str:
    """The golden file of an example."""
    return f"templates/{example}.json"


def text_of(assembly: Assembly) -> str:
    """One line for each resource, parameter and output of each stack: what it is called, its type, and a digest."""
    stacks = {name: sorted(_lines(template)) for name, template in assembly.templates.items()}
    return json.dumps(stacks, indent=1, sort_keys=True) + "\n"


def _lines(template: Mapping[str, Any]) -> Iterator[str]:
    for section, entries in template.items():
        if not isinstance(entries, dict):
            yield f"{section}: {_digest(entries)}"
            continue
        for name, body in entries.items():
            id_ = _VERSION.sub("<version>", name)
            if section == "Resources":
                yield f"{id_} {body['Type']} {_digest({key: body[key] for key in _BODY if key in body})}"
            else:
                yield f"{section}.{id_} {_digest(body)}"


def _digest(content: object) -> str:
    return hashlib.sha256(json.dumps(_without_hashes(content), sort_keys=True).encode()).hexdigest()[:16]


def _without_hashes(content: object) -> object:
    match content:
        case str():
            return _VERSION.sub("<version>", _ASSET.sub("<asset>", content))
        case list():
            return [_without_hashes(each) for each in content]
        case dict():
            plain = {key: _without_hashes(each) for key, each in content.items()}
            if isinstance(resources := plain.get("Resource"), list):
                plain["Resource"] = sorted(resources, key=json.dumps)  # the CDK sorts them with their hashes
            return plain
    return content
