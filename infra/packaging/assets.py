"""Deployment assets: the bundle of a function (the folder that the lab runs), and the files of jobs.

They are built before CDK sees them, so that an asset's hash is the hash of what is deployed, not of its sources.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from aws_cdk import aws_lambda as lambda_

from infra.packaging import bundle, spark_archive, wheels

if TYPE_CHECKING:
    from collections.abc import Mapping

    from constructs import Construct

    from infra.packaging.spark_archive import Artifact
    from infra.packaging.wheels import Platform

LOCAL = "mirrorless:local"
"""Context key. `true` makes assets for this machine, so that what a template deploys can be run here."""

HOLLOW = "mirrorless:hollow"
"""Context key. `true` makes templates whose assets hold something else, so that nothing has to be built: to compare."""

_PLATFORMS: dict[str, Platform] = {"arm64": "manylinux arm64", "x86_64": "manylinux x86_64"}


def function_code(
    scope: Construct, part: str, architecture: Literal["arm64", "x86_64"], own: Mapping[str, bytes] | None = None
) -> lambda_.Code:
    """The code of a function. Args: own: see `infra.packaging.bundle.own_modules`.

    Raises:
        infra.packaging.wheels.BuildError: the bundle cannot be built.
    """
    if scope.node.try_get_context(HOLLOW):
        # Without what Python writes beside it meanwhile: what is compared has the same code.
        return lambda_.Code.from_asset(str(bundle.FUNCTIONS), exclude=["__pycache__"])
    if scope.node.try_get_context(LOCAL):
        folder = bundle.build(part, own=own)
    else:
        folder = bundle.build(part, platform=_PLATFORMS[architecture], own=own)
    return lambda_.Code.from_asset(str(folder))


def spark_artifacts(
    scope: Construct, architecture: Literal["arm64", "x86_64"], own: Mapping[str, bytes] | None = None
) -> dict[str, Artifact]:
    """What jobs are made of: `package`, `environment`, and the scripts by the names of their jobs.

    Args:
        scope: what has the context.
        architecture: of the workers.
        own: see `infra.packaging.bundle.own_modules`, of all flows.

    Raises:
        infra.packaging.wheels.BuildError: the archive cannot be built.
    """
    if scope.node.try_get_context(HOLLOW):
        environment = spark_archive.package()
    elif scope.node.try_get_context(LOCAL):
        environment = spark_archive.environment(python=wheels.running_python(), rules=own is not None)
    else:
        environment = spark_archive.environment(platform=_PLATFORMS[architecture], rules=own is not None)
    return {"package": spark_archive.package(own=own), "environment": environment, **spark_archive.scripts()}
