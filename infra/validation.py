"""The one validation of a configuration that is to be deployed: for the command, synthesis and deployment alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infra.deployment import Deployment, plan
from infra.limits import limit_problems
from mirrorless.config.loading import examine
from mirrorless.config.problems import InvalidConfiguration

if TYPE_CHECKING:
    from pathlib import Path


def validated(source: Path | str) -> Deployment:
    """The plan of a configuration. Args: source: a file, or the text itself with a line break.

    Raises:
        InvalidConfiguration: with everything that is wrong: values, what a deployment needs, what AWS would refuse.
        ConfigurationError: the file cannot be read.
    """
    found = examine(source)
    if found.configuration is None:
        raise found.as_error()
    try:
        deployment = plan(found.configuration)
    except InvalidConfiguration as exc:
        raise found.with_problems(exc.problems).as_error() from None
    found = found.with_problems(limit_problems(deployment))
    if found.problems:
        raise found.as_error()
    return deployment
