"""A configuration of one flow with as many topics as a test wants, between the clusters of an example."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.support.assembly import EXAMPLES
from tests.support.yaml_text import dump_yaml, load_yaml

UNLIKE = tuple(f"{number * 7919 % 2000:04}-of-team-{number % 7}" for number in range(2_000))
"""Names that begin as unlike as names can."""


def many_topics(
    *,
    topics: Sequence[str],
    mode: str = "provisioned",
    stacks: int = 1,
    iam: bool = False,
    keys: Mapping[str, Any] | None = None,
    cluster: Mapping[str, Any] | None = None,
    deployment: Mapping[str, Any] | None = None,
) -> str:
    """The text of a configuration.

    Args:
        topics: of the flow.
        mode: of its mappings.
        stacks: `mapping.stacks`.
        iam: whether its clusters authenticate by IAM, otherwise by secrets.
        keys: more of the flow.
        cluster: more of the source.
        deployment: more of the deployment.
    """
    document = load_yaml(EXAMPLES["active-passive" if iam else "active-active"].read_text())
    name = next(iter(document["flows"]))
    document["defaults"] = {"mapping": {"mode": mode}}
    document["flows"] = {name: {"topics": list(topics), "heartbeats.replication.enabled": not iam, **(keys or {})}}
    document["clusters"][name.split("->")[0]] |= cluster or {}
    document["deployment"] = {"mapping.stacks": stacks, **(deployment or {})}
    return dump_yaml(document)
