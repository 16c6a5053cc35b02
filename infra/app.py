"""The CDK app: replication.yaml in, the stacks of every region and account out.

    cdk synth -c config=replication.yaml          context: config, and mirrorless:local (see infra.packaging.assets)

Needs no credentials, no network and no git.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aws_cdk import App, Validations
from cdk_nag import AwsSolutionsChecks

from infra.stacks.home import ControlStack, FunctionStack, MappingsStack, MonitoringStack, ReplicationStack
from infra.stacks.spark import SparkStack
from infra.stacks.state import StateStack
from infra.validation import validated
from mirrorless.errors import MirrorlessError
from mirrorless.flow.naming import FORWARD, PULL, STANDBY

if TYPE_CHECKING:
    from infra.deployment import Deployment
    from infra.stacks import PlacedStack

CONFIG = "config"
DEFAULT_CONFIG = "replication.yaml"


def build(app: App, deployment: Deployment) -> App:
    """Add every stack of a deployment, and hold them to the rules."""
    Validations.of(app).add_plugins(AwsSolutionsChecks(app))
    return add_stacks(app, deployment)


def add_stacks(app: App, deployment: Deployment) -> App:
    """Add every stack of a deployment, in the order in which they can be deployed."""
    states = {place: StateStack(app, deployment=deployment, place=place) for place in deployment.states}
    for place in deployment.jobs:
        spark = SparkStack(app, deployment=deployment, place=place)
        for state in sorted({place, *(flow.state for flow in deployment.flows_at("jobs", place))}):
            spark.add_stack_dependency(states[state])
    pulls = {place: FunctionStack(app, PULL, deployment=deployment, place=place) for place in deployment.pulls}
    for place, pull in pulls.items():
        for state in sorted({flow.state for flow in deployment.flows_at(PULL, place)}):
            pull.add_stack_dependency(states[state])
    for place in deployment.standbys:
        FunctionStack(app, STANDBY, deployment=deployment, place=place).add_stack_dependency(states[place])
    for home in deployment.homes:
        replication = ReplicationStack(app, deployment=deployment, place=home)
        for place in sorted({flow.state for flow in deployment.flows_at(FORWARD, home)}):
            replication.add_stack_dependency(states[place])
        for place in sorted({flow.pull for flow in deployment.flows_at(FORWARD, home) if flow.pull is not None}):
            replication.add_stack_dependency(pulls[place])  # before the mappings of scheduled topics go
        last: PlacedStack = replication
        for number in range(1, deployment.settings.mapping_stacks):
            mappings = MappingsStack(app, deployment=deployment, place=home, number=number)
            mappings.add_stack_dependency(last)  # what moves from an earlier one to a later one is gone there
            last = mappings
        control = ControlStack(app, deployment=deployment, place=home)
        control.add_stack_dependency(last)  # its first run maps found topics to the forwarder
        MonitoringStack(app, deployment=deployment, place=home).add_stack_dependency(control)
    return app


def app_of(config: Path, *, outdir: Path | None = None, context: dict[str, Any] | None = None) -> App:
    """The app of a configuration file.

    Args:
        config: replication.yaml.
        outdir: where `synth` writes; None: the folder of the CLI.
        context: what cdk.json would give; None: the CLI gives it.

    Raises:
        ConfigurationError: the configuration is not valid, or lacks what a deployment needs.
        infra.packaging.wheels.BuildError: an asset cannot be built.
    """
    app = App(outdir=str(outdir) if outdir else None, context=context)
    return build(app, validated(config))


def main() -> None:
    """Synthesize the configuration that the context names."""
    app = App()
    config = Path(str(app.node.try_get_context(CONFIG) or DEFAULT_CONFIG))
    try:
        build(app, validated(config)).synth()
    except MirrorlessError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
