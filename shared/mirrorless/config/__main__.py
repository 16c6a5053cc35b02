"""The reference page of replication.yaml and its JSON schema for editors, generated from the model.

python -m mirrorless.config [FOLDER]          writes both into a folder, `docs` if none is named
"""

from __future__ import annotations

import json
import sys
from inspect import cleandoc
from pathlib import Path as File
from typing import TYPE_CHECKING, Any, Final

from mirrorless.chain.lane import ALIAS
from mirrorless.config.cluster import ClusterSection, Plaintext
from mirrorless.config.flow_section import FlowSection
from mirrorless.config.messages import AUTHENTICATIONS, SECTIONS, expectation, schema_of
from mirrorless.config.schema import Document

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mirrorless.config.problems import Path
    from mirrorless.config.types import Section

_INTRODUCTION = """\
# Configuration

*Generated from the model by `python -m mirrorless.config`: change the model, not this page.*

One file, `replication.yaml`, describes the clusters and the flows between them. `mirrorless config check FILE` prints
what would be made of a file, or all its problems. Nothing is created from a file that has a problem.

Keys are MirrorMaker 2's where it has one, written in one piece: `emit.heartbeats.enabled: true`. A list is a YAML
list, or names with commas between. A range is one of whole numbers. Only `true` and `false` are truth values, and only
decimal digits are numbers; quotes make text; tags are not read, and aliases (`*`) repeat 50,000 values at most. In
brackets is what a key takes and, behind a semicolon, its default.

**Names and patterns.** An entry of letters, digits, `.`, `_` and `-` is a literal name, and its dot is a dot
(MirrorMaker 2 lets it match any character). Everything else is a regular expression of Python's that must match the
whole name, with `\\w`, `\\d` and `(?i)` of ASCII as in Java. What Java alone has is refused, with the same in
Python's form.

**Remote topics.** Only aliases under `clusters`, or their `topic.prefix`, count as origins: `orders.v1` is not taken
for the topic `v1` of a cluster `orders`. A topic that has been at either end of a flow is a cycle and is not
replicated. Under `identity` a name does not contain the origin, so circles are refused, unless each flow has
[`loop.prevention: header`](../how-to/active-active.md).
"""

_SCHEMA_HOME = "https://json-schema.org/draft/2020-12/schema"


def reference_page() -> str:
    """Return docs/reference/configuration.md."""
    parts = [_INTRODUCTION]
    for path, (section, _) in SECTIONS.items():
        introduction = _BEGINNINGS.get(section, cleandoc(section.__doc__ or ""))
        parts.append(_section(_title(path), introduction, section))
        parts += [_authentications()] if section is ClusterSection else []
    return "\n".join(parts)


_BEGINNINGS: Final[Mapping[type[Section], str]] = {
    Document: "",
    ClusterSection: "A Kafka cluster. `producer.…` applies to what is written to it, by any flow.",
    FlowSection: "A key that a flow leaves out is taken from `defaults`.",
}


_NAMES: Final = {
    "clusters.*": "clusters.*alias*",
    "flows.*": "flows.*source->target*, and defaults",
    "keys.*": "keys.*name*",
}


def _title(path: Path) -> str:
    """A section's heading; what is in a flow may be in `defaults`, too."""
    text = ".".join(map(str, path)) or "The document"
    if text.startswith("flows.*."):
        return f"….{text.removeprefix('flows.*.').replace('.*', '[]')}"
    for stars, name in _NAMES.items():
        text = text.replace(stars, name)
    return text


def editor_schema() -> str:
    """Return docs/replication.schema.json, for completion and checks in an editor."""
    schema = Document.model_json_schema(by_alias=True)
    schema["properties"]["clusters"]["propertyNames"] = {"pattern": f"^{ALIAS.pattern}$"}
    schema["properties"]["flows"]["propertyNames"] = {"pattern": f"^{ALIAS.pattern}->{ALIAS.pattern}$"}
    document = {"$schema": _SCHEMA_HOME, **_untitled(schema), "title": "replication.yaml"}
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _untitled(schema: Any) -> Any:
    """Drop pydantic's titles: an editor would show them in place of the keys."""
    if isinstance(schema, dict):
        return {
            key: _untitled(value) for key, value in schema.items() if not (key == "title" and isinstance(value, str))
        }
    return [_untitled(entry) for entry in schema] if isinstance(schema, list) else schema


def _authentications() -> str:
    """The section `authentication`: its types, then each key once with the types that have it."""
    types: dict[str, list[str]] = {}
    for name, model in AUTHENTICATIONS.items():
        for line in _keys(model):
            if not line.startswith("- `type` "):
                types.setdefault(line, []).append(name)
    return "\n".join(
        [
            "## clusters.*alias*.authentication\n",
            *(
                f"- `type: {name}`: {_first_line(model)} {model.model_fields['type'].description}"
                for name, model in AUTHENTICATIONS.items()
            ),
            "\nKeys, with the types that have them:\n",
            *(f"{line} *{', '.join(names)}*" for line, names in types.items()),
            "",
        ]
    )


def _section(title: str, introduction: str, section: type[Section]) -> str:
    introduction = f"{introduction}\n\n" if introduction else ""
    return f"## {title}\n\n{introduction}" + "\n".join(_keys(section)) + "\n"


def _keys(section: type[Section]) -> Iterator[str]:
    """A line for each key: what it expects, its default, and its meaning."""
    required = schema_of(section).get("required", [])
    for field in section.model_fields.values():
        key = str(field.alias)
        value = field.get_default(call_default_factory=True, validated_data={})
        default = "*required*" if key in required else _default(value)
        expected = "" if isinstance(value, bool) else _short(expectation(section, key))
        said = "; ".join(filter(None, (expected, default)))
        yield f"- `{key}` ({said}): {field.description}"


def _short(expected: str) -> str:
    """What a key expects: the introduction has the rest."""
    for phrase in ("a whole number from ", ", or names with commas between", "a section of "):
        expected = expected.replace(phrase, "")
    return expected


def _default(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return f"`{str(value).lower()}`"
        case tuple():
            return ", ".join(f"`{entry}`" for entry in value) or "none"
        case str() | int() | float():
            return f"`{value}`"
        case Plaintext():
            return "`type: plaintext`"
        case _:
            return "its own defaults" if value else "none"


def _first_line(section: type[Section]) -> str:
    return (section.__doc__ or "").partition("\n")[0]


PAGES = {"reference/configuration.md": reference_page, "replication.schema.json": editor_schema}
"""What is generated, by its name in the folder `docs`."""


def main(folder: File) -> None:
    """Write every generated page into a folder."""
    for name, text_of in PAGES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text_of(), encoding="utf-8")
        print(f"wrote {folder / name}")


if __name__ == "__main__":
    main(File(sys.argv[1]) if len(sys.argv) > 1 else File("docs"))
