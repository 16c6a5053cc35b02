"""Type, range and choices of a key in words, for error messages and for the reference page."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from mirrorless.config.cluster import (
    ClusterSection,
    Iam,
    Mtls,
    OauthBearer,
    Plain,
    Plaintext,
    Scram,
    Tls,
    Vpc,
)
from mirrorless.config.flow_section import FlowSection, FunctionSection, MappingSection, ScheduleSection
from mirrorless.config.schema import AlarmSection, DeploymentSection, Document, SparkSection
from mirrorless.config.types import Section

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mirrorless.config.messages import Path

AUTHENTICATIONS: dict[str, type[Section]] = {
    "plaintext": Plaintext,
    "tls": Tls,
    "plain": Plain,
    "scram": Scram,
    "oauthbearer": OauthBearer,
    "mtls": Mtls,
    "iam": Iam,
}

PATTERNS = {
    "region": "an AWS region like `us-east-1`",
    "account": "twelve digits in quotes",
    "msk.cluster.arn": "an ARN like `arn:aws:kafka:us-east-1:111122223333:cluster/name/uuid`",
    "id": "an id like `vpc-0abc`",
    "replication.policy.separator": "1 to 16 letters, digits, `.`, `_` or `-`",
    "poller.group.name": "up to 128 letters, digits, `_` or `-`",
    "name": "2 to 20 letters a-z and digits, the first a letter",
    "scope": "letters, digits, spaces or one of `/*:_+=.@-`",
    "logical.cluster": "letters, digits or `-`",
    "identity.pool": "letters, digits or `-`",
}
"""Formats of values, in words: an operator should not have to read a regular expression."""


SECTIONS: dict[Path, type[Section]] = {
    (): Document,
    ("clusters", "*"): ClusterSection,
    ("clusters", "*", "vpc"): Vpc,
    ("flows", "*"): FlowSection,
    ("flows", "*", "mapping"): MappingSection,
    ("flows", "*", "function"): FunctionSection,
    ("flows", "*", "schedule"): ScheduleSection,
    ("defaults",): FlowSection,
    ("defaults", "mapping"): MappingSection,
    ("defaults", "function"): FunctionSection,
    ("defaults", "schedule"): ScheduleSection,
    ("deployment",): DeploymentSection,
    ("deployment", "alarms"): AlarmSection,
    ("deployment", "spark"): SparkSection,
}


def section_at(path: Path, data: Any) -> type[Section] | None:
    """Return the model of the section at `path` of a document; None where the document has no section."""
    if path[:1] == ("clusters",) and path[2:] == ("authentication",):
        return AUTHENTICATIONS.get(str(_get(data, (*path, "type"))))
    named = path[:1] in {("clusters",), ("flows",)} and len(path) > 1
    return SECTIONS.get((path[0], "*", *path[2:]) if named else path)


def keys_of(section: type[Section]) -> list[str]:
    """Return the keys of a section, in the order of the model."""
    return [str(field.alias) for field in section.model_fields.values()]


def expectation(section: type[Section], key: str) -> str:
    """Return what the value of one key must be, in words: `a whole number from 1 to 200`."""
    return _in_words(schema_of(section)["properties"][key], key)


@cache
def schema_of(section: type[Section]) -> dict[str, Any]:
    """Return the JSON schema of a section, keys as they are written."""
    return section.model_json_schema(by_alias=True)


def either(choices: Sequence[str]) -> str:
    """Write `a`, `b` or `c`."""
    quoted = [f"`{choice}`" for choice in choices]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} or {quoted[-1]}"


def _in_words(schema: dict[str, Any], key: str) -> str:  # noqa: C901, PLR0911 -- one line per kind of value
    match schema:
        case {"enum": choices}:
            return either(choices)
        case {"const": choice}:
            return f"`{choice}`"
        case {"anyOf": [{"enum": words}, {"format": "date-time"}]}:
            return f"{either(words)}, or a time like `2026-01-31T12:00:00Z`"
        case {"anyOf": [{"type": "array"}, {"type": "string"}]}:
            return "a list, or names with commas between"
        case {"anyOf": [first, {"type": "null"}]}:
            return _in_words(first, key)
        case {"type": "integer", "minimum": least, "maximum": most}:
            return f"a whole number from {least:,} to {most:,}"
        case {"type": "boolean"}:
            return "`true` or `false`"
        case {"type": "string"}:
            return PATTERNS.get(key, "text")
        case {"type": "array", "items": {"enum": choices}}:
            return f"a list of {either(choices)}"
        case {"type": "array"}:
            return "a list"
        case {"additionalProperties": {"enum": choices}}:
            return f"names or patterns, each with {either(choices)}"
        case _:
            return "a section of keys"


def _get(data: Any, path: Path) -> Any:
    for step in path:
        data = data.get(step) if isinstance(data, dict) else None
    return data
