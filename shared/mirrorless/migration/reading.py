"""The way from files to mirrors: what each file is shows in what it has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from mirrorless.config import yaml_source
from mirrorless.errors import ConfigurationError
from mirrorless.flow.java_properties import read_properties
from mirrorless.migration.connectors import connector_mirrors, is_of_mirrors
from mirrorless.migration.dedicated import dedicated_mirrors
from mirrorless.migration.mirrors import GivenKey, Mirror, Properties
from mirrorless.migration.strimzi import leaves, strimzi_mirrors

_HINT = (
    "name connect-mirror-maker.properties, MirrorMaker's connectors as JSON or the address of their Connect cluster, a "
    "KafkaMirrorMaker2 of Strimzi, or the properties of Confluent's Replicator; describe what another tool copies by "
    "hand, as replication.example.yaml does"
)
_YAML_KIND = re.compile(r"^kind:\s*KafkaMirrorMaker2\s*$", re.MULTILINE)


def read_mirrors(files: Mapping[str, bytes]) -> tuple[list[GivenKey], list[Mirror]]:
    """Read files, by their names: every key that they have, and the mirrors that they describe together.

    Raises:
        ConfigurationError: a file is none of the known forms, or they describe no mirror.
    """
    given: list[GivenKey] = []
    mirrors: list[Mirror] = []
    connectors: list[Properties] = []
    for name, data in files.items():
        if data.lstrip()[:1] in {b"{", b"["}:
            connectors += _connectors(name, data)
            continue
        text = data.decode("utf-8", "replace")
        if documents := [each for each in re.split(r"^---.*$", text, flags=re.MULTILINE) if _YAML_KIND.search(each)]:
            for each in documents:
                resource = yaml_source.read(each, origin=name).data
                keys = {leaf.key: leaf for leaf in leaves(name, resource)}
                given += keys.values()
                mirrors += strimzi_mirrors(keys, resource)
            continue
        keys = _keys(name, read_properties(data, origin=name))
        if "clusters" in keys and "connector.class" not in keys:
            given += keys.values()
            mirrors += dedicated_mirrors(keys)
        elif "connector.class" in keys:
            connectors.append(keys)
        else:
            raise ConfigurationError("this is no configuration of MirrorMaker 2", where=name, hint=_HINT)
    known = [each for each in connectors if is_of_mirrors(each)]
    given += (each for properties in known for each in properties.values())
    mirrors += connector_mirrors(known)
    if not mirrors:
        raise ConfigurationError("there is no mirror in it", where=", ".join(files), hint=_HINT)
    if same := [each.source for each in mirrors if each.source == each.target]:
        hint = "give source and target an alias each: a flow is between two clusters"
        raise ConfigurationError(f"{same[0]!r} is source and target", where=", ".join(files), hint=hint)
    return given, mirrors


def _keys(file: str, properties: Mapping[str, Any]) -> dict[str, GivenKey]:
    return {key: GivenKey(file=file, key=key, value=_text(value)) for key, value in properties.items()}


def _text(value: Any) -> str:
    """A value as Connect takes it from JSON."""
    return value if isinstance(value, str) else "" if value is None else json.dumps(value)


def _connectors(name: str, data: bytes) -> Iterable[Properties]:
    """Read connectors: one, with its `config` or as that alone; a list; or what a Connect cluster answers."""
    try:
        found = json.loads(data)
    except ValueError as exc:
        raise ConfigurationError(f"this is not JSON: {exc}", where=name, hint=_HINT) from exc
    several = found if isinstance(found, list) else [found]
    if isinstance(found, dict) and found and all(isinstance(each, dict) and "info" in each for each in found.values()):
        several = [each["info"] for each in found.values()]
    for each in several:
        config = each.get("config", each) if isinstance(each, dict) else None
        if not isinstance(config, dict):
            raise ConfigurationError("this is no connector", where=name, hint=_HINT)
        label = f"{name} {each['name']}" if len(several) > 1 and "name" in each else name
        yield _keys(label, config)
