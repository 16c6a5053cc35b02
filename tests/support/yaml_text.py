"""YAML documents of tests as plain data."""

from __future__ import annotations

from io import StringIO
from typing import Any

from ruamel.yaml import YAML


def load_yaml(text: str) -> Any:
    """The data of a document, by YAML 1.2."""
    return YAML(typ="safe", pure=True).load(text)


def dump_yaml(data: Any) -> str:
    """The document of some data."""
    text = StringIO()
    YAML(typ="safe", pure=True).dump(data, text)
    return text.getvalue()
