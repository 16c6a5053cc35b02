"""Changes of single keys in the text of replication.yaml; every other character stays as it is.

A key is placed below the name of its section. What was written is read again, and must be the old data with these keys.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ruamel.yaml.nodes import MappingNode, Node

from mirrorless.chain.lane import FlowName
from mirrorless.config import yaml_source
from mirrorless.config.loading import load
from mirrorless.config.problems import InvalidConfiguration, section
from mirrorless.config.rules import PROVISIONED_ONLY
from mirrorless.errors import ConfigurationError

Keys = Mapping[str, Any]
"""Keys of a section: text, numbers, true and false, or sections."""

_PLAIN: Final = re.compile(r"(?!(?:null|true|false|yes|no|on|off|y|n)$)[A-Za-z][A-Za-z0-9._-]*", re.IGNORECASE)
"""Text that every reader of YAML takes for text, without quotes."""

_INDENT: Final = 2


@dataclass(frozen=True, slots=True)
class Whole:
    """A section that replaces the one that stands there."""

    keys: Keys


@dataclass(slots=True)
class _Edits:
    """Replacements in a text, from one index to another."""

    text: str
    found: list[tuple[int, int, str]] = field(default_factory=list)

    def replace(self, start: int, end: int, new: str) -> None:
        """Put a text, whose lines end as all others do, in place of another."""
        self.found.append((start, end, new.replace("\n", "\r\n") if "\r\n" in self.text else new))

    def applied(self) -> str:
        """The text with all replacements."""
        text = self.text
        for start, end, new in sorted(self.found, reverse=True):
            text = text[:start] + new + text[end:]
        return text


def with_flow_keys(text: str, flow: str, keys: Mapping[str, Any], *, origin: str) -> str:
    """Return the text of a configuration with keys of one flow set.

    Args:
        text: of a valid configuration.
        flow: its name, `source->target`.
        keys: a section's keys are set one by one, and those of a `Whole` replace all that stand there.
        origin: the file, for errors.

    Raises:
        ConfigurationError: the text is written so that they cannot be set without changing more.
    """
    before = yaml_source.read(text, origin=origin).data
    expected = {**before, "flows": {**before["flows"], flow: _merged(before["flows"][flow], keys)}}
    edits = _Edits(text)
    try:
        _set(edits, _section(yaml_source.compose(text, origin=origin), "flows", flow), keys)
        after = edits.applied()
        done = yaml_source.read(after, origin=origin).data == expected
    except (_Unfit, InvalidConfiguration):
        done = False
    if not done:
        raise ConfigurationError(
            "the keys cannot be added to this flow without changing more of the file",
            where=f"{origin}: {flow}",
            hint=f"add them by hand: {_flow_style(_merged({}, keys))}",
        )
    return after


class _Unfit(Exception):
    """The text has another form than this module writes."""


def _merged(section: Any, keys: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(section or {})
    for key, value in keys.items():
        if isinstance(value, Whole):
            merged[key] = dict(value.keys)
        else:
            merged[key] = _merged(merged.get(key), value) if isinstance(value, Mapping) else value
    return merged


def _section(root: Node | None, *path: str) -> MappingNode:
    node: Any = root
    for key in path:
        node = _child(node, key)
    if not isinstance(node, MappingNode):
        raise _Unfit
    return node


def _child(node: Any, key: str) -> Any:
    if isinstance(node, MappingNode):
        for name, value in node.value:
            if name.value == key:
                return value
    return None


def _set(edits: _Edits, section: MappingNode, keys: Keys) -> None:
    """Set the keys of a section that is there."""
    new: dict[str, Any] = {}
    for key, value in keys.items():
        found = _child(section, key)
        if found is None:
            new[key] = value
        elif isinstance(value, Whole):
            _replace(edits, found, value.keys)
        elif isinstance(value, Mapping):
            if not isinstance(found, MappingNode):
                raise _Unfit
            _set(edits, found, value)
        else:
            edits.replace(found.start_mark.index, found.end_mark.index, scalar(value))
    if new:
        _insert(edits, section, new)


def _insert(edits: _Edits, section: MappingNode, keys: Keys) -> None:
    """Put new keys in front of those of a section."""
    plain = {key: dict(value.keys) if isinstance(value, Whole) else value for key, value in keys.items()}
    if section.flow_style:
        inner = _flow_style(plain)[1:-1]
        edits.replace(
            section.start_mark.index + 1, section.start_mark.index + 1, inner + (", " if section.value else "")
        )
        return
    first = section.value[0][0].start_mark
    # Below the section's name: a comment between the two is about the key that follows it.
    line = edits.text.rfind("\n", 0, first.index) + 1
    while (above := edits.text[:line].rstrip("\n").rpartition("\n")[2].strip()) == "" or above.startswith("#"):
        if line == 0:
            raise _Unfit
        line = edits.text.rfind("\n", 0, line - 1) + 1
    edits.replace(line, line, block(plain, first.column))


def _replace(edits: _Edits, found: Node, keys: Keys) -> None:
    """Put keys in place of a section."""
    if not isinstance(found, MappingNode):
        raise _Unfit
    if found.flow_style or not keys:
        edits.replace(found.start_mark.index, _end(found), _flow_style(keys))
        return
    column = found.value[0][0].start_mark.column
    edits.replace(found.start_mark.index, _end(found), block(keys, column).strip())


def _end(node: Any) -> int:
    """The index behind a node: that of a block section lies behind the comments and empty lines that follow it."""
    if isinstance(node.value, list) and not node.flow_style:
        last = node.value[-1]
        return _end(last[1] if isinstance(last, tuple) else last)
    return int(node.end_mark.index)


def block(keys: Keys, column: int = 0) -> str:
    """Lines of YAML with these keys. Args: column: where they begin."""
    lines = []
    for key, value in keys.items():
        if isinstance(value, Mapping) and value:
            lines += [f"{' ' * column}{scalar(key)}:\n", block(value, column + _INDENT)]
        else:
            lines.append(f"{' ' * column}{scalar(key)}: {_flow_style(value)}\n")
    return "".join(lines)


def _flow_style(value: Any) -> str:
    if not isinstance(value, Mapping):
        return scalar(value)
    return "{" + ", ".join(f"{scalar(key)}: {_flow_style(each)}" for key, each in value.items()) + "}"


def scalar(value: Any) -> str:
    """Text, a number, true, false or null, as YAML has it."""
    if isinstance(value, str):
        return value if _PLAIN.fullmatch(value) else json.dumps(value)
    return json.dumps(value)


_PACE: Final = ("continuous", "interval.seconds")
"""Keys of `schedule` of which a plan sets one and removes the other."""


def with_plan(text: str, flow: FlowName, keys: Keys, *, origin: str) -> str:
    """Return the text of a valid configuration with a plan's keys of a flow; all other text stays as it is.

    Raises:
        ConfigurationError: the keys cannot be set without changing more, or do not go with the others.
    """
    standing = yaml_source.read(text, origin=origin).data["flows"][str(flow)]
    changes = dict(keys)
    if "trigger.overrides" in keys:
        changes["trigger.overrides"] = Whole(keys["trigger.overrides"])
    if "schedule" in keys:
        kept = {key: value for key, value in section(standing, "schedule").items() if key not in _PACE}
        changes["schedule"] = Whole({**kept, **keys["schedule"]})
    if "mapping" in keys:
        refused = PROVISIONED_ONLY if keys["mapping"].get("mode") == "on-demand" else ()
        own = section(standing, "mapping")
        kept = {key: value for key, value in own.items() if key not in refused}
        changes["mapping"] = keys["mapping"] if kept == own else Whole({**kept, **keys["mapping"]})
    if not changes:
        return text
    after = with_flow_keys(text, str(flow), changes, origin=origin)
    load(after if "\n" in after else f"{after}\n")
    return after
