"""The plan of one flow, as its deployment needs it: what is not about the test is written here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from infra.deployment import Deployment, FlowDeployment, plan
from mirrorless.config import load
from tests.support.yaml_text import dump_yaml

Section = Mapping[str, Any]


def deployment(
    flow: Section, *, source: Section | None = None, target: Section | None = None, **more: Any
) -> Deployment:
    """The deployment of a flow `a->b` from one region and account to another.

    Args:
        flow: its keys; topic `orders` if it names none.
        source: keys of the source beside the usual ones, or in their place.
        target: the same of the target.
        more: other sections of the document.
    """
    places = {"a": ("us-east-1", "111122223333", source), "b": ("eu-west-1", "444455556666", target)}
    clusters = {
        alias: {
            "bootstrap.servers": [f"{alias}:9098"],
            "authentication": {"type": "iam"},
            "region": region,
            "account": account,
            **(keys or {}),
        }
        for alias, (region, account, keys) in places.items()
    }
    return plan(load(dump_yaml({"clusters": clusters, "flows": {"a->b": {"topics": ["orders"], **flow}}, **more})))


def planned(flow: Section, **more: Any) -> FlowDeployment:
    """The flow of `deployment`."""
    (found,) = deployment(flow, **more).flows
    return found
