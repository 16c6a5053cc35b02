"""Configurations of MirrorMaker 2 and others as replication.yaml, with every comment."""

from __future__ import annotations

import json

from mirrorless.migration.conversion import configuration_text, conversion_of
from mirrorless.migration.reading import read_mirrors
from tests.support.mirror_files import BOTH_WAYS, CONNECTORS, REPLICATOR, V1BETA2

FILES = {
    "both-ways": {"mm2.properties": BOTH_WAYS},
    "connectors": {f"{each['name']}.json": json.dumps(each) for each in CONNECTORS},
    "strimzi": {"mm2.yaml": V1BETA2},
    "replicator": {"copy.properties": REPLICATOR},
}


def texts() -> dict[str, str]:
    """The text of each, and below it what the operator is told."""
    found = {}
    for name, files in FILES.items():
        made = conversion_of(*read_mirrors({file: text.encode() for file, text in files.items()}))
        found[f"conversions/{name}.txt"] = "\n".join([configuration_text(made), *made.notes, ""])
    return found
