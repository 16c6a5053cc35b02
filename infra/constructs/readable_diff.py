"""A flow's settings by name in a resource's metadata, so that `cdk diff` shows what changed in replication.yaml.

A function's environment and a schedule's input hold them too, as one long text each, where nobody finds a change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from aws_cdk import CfnResource

if TYPE_CHECKING:
    from constructs import IConstruct


def show_in_diff(construct: IConstruct, settings: Any) -> None:
    """Attach nested plain values to a construct's resource; CloudFormation stores them and does nothing with them."""
    resource = cast("CfnResource", construct.node.default_child or construct)
    resource.add_metadata("mirrorless", _shown(settings))


def _shown(value: Any) -> Any:
    match value:
        case dict():
            return {name: _shown(each) for name, each in value.items()}
        case list() | tuple():
            return [_shown(each) for each in value]
        case bool():
            return "true" if value else "false"  # the diff leaves out the values of real ones
        case _:
            return value
