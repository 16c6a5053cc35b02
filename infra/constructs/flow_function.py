"""A Lambda function of a flow: a bundle behind an alias, a log group with retention, a role of its own.

Whoever calls it calls the alias: a deployment publishes a version and moves the alias to it, so that no caller meets a
function that is half changed. Old versions stay: an invocation that runs on one is not cut off. One whose update is
rolled back goes: Lambda makes one version of the same code, and would refuse it when the update is repeated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from aws_cdk import Duration, RemovalPolicy
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from constructs import Construct

from infra.constructs.annotations import acknowledge, excuse
from infra.deployment import ALIAS
from infra.iam import divided, file_of
from infra.iam.statements import network_of, rights_of
from infra.packaging.assets import function_code
from infra.packaging.bundle import RUNTIME, own_modules

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from infra.deployment import Deployment, FlowDeployment
    from infra.iam import Part, Right


_ARCHITECTURES = {"arm64": lambda_.Architecture.ARM_64, "x86_64": lambda_.Architecture.X86_64}


class FlowFunction(Construct):
    """One function of one flow.

    Attributes:
        role: what it runs as, and what a mapping's pollers run as.
        policy: its rights; what is validated on creation, as a mapping is, must depend on it.
        function: the function.
        alias: what callers call.
    """

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        deployment: Deployment,
        flow: FlowDeployment,
        part: Part,
        description: str,
        memory_mb: int,
        timeout_seconds: int,
        variables: Mapping[str, str],
        reserved_concurrency: int | None = None,
    ) -> None:
        """Make it.

        Args:
            scope: the stack.
            id_: the construct's id, which must not change: it is part of the logical ids.
            deployment: keys, log retention.
            flow: whose function it is.
            part: which of the flow's functions.
            description: for the console.
            memory_mb: memory.
            timeout_seconds: of an invocation.
            variables: its environment.
            reserved_concurrency: executions kept and at most; None: the account's pool.
        """
        super().__init__(scope, id_)
        name, place = flow.flow.resource_name(part), flow.place_of(part)
        architecture = flow.flow.settings.function.architecture
        key_arn = deployment.kms_key(place)
        key = kms.Key.from_key_arn(self, "Key", key_arn) if key_arn else None
        own = own_modules(flow.flow.rules, deployment.configuration.origin)
        log = add_log_group(self, f"/aws/lambda/{name}", deployment=deployment, key=key)
        self.role = iam.Role(
            self,
            "Role",
            assumed_by=iam.ServicePrincipal("lambda.amazonaws.com"),
            path=flow.role_path(part),
            description=f"{part} of {flow.id}",
        )
        granted = rights_of(deployment, flow, part)
        self.policy = add_policies(self, self.role, granted, path=flow.role_path(part))
        self.policy.add_statements(*_not_for_code(flow, part, granted))
        self.function = lambda_.Function(
            self,
            "Function",
            function_name=name,
            description=description,
            runtime=lambda_.Runtime(f"python{RUNTIME}", lambda_.RuntimeFamily.PYTHON),
            architecture=_ARCHITECTURES[architecture],
            handler=f"{file_of(part)}.handler",
            code=function_code(self, file_of(part), architecture, own),
            memory_size=memory_mb,
            timeout=Duration.seconds(timeout_seconds),
            environment={**variables, **flow.metrics_variables},
            environment_encryption=key,
            reserved_concurrent_executions=reserved_concurrency,
            log_group=log,
            # Lambda's own lines about an invocation that went well would be most of the log.
            # https://docs.aws.amazon.com/lambda/latest/dg/monitoring-cloudwatchlogs-log-level.html
            logging_format=lambda_.LoggingFormat.JSON,
            system_log_level_v2=lambda_.SystemLogLevel.WARN,
            application_log_level_v2=lambda_.ApplicationLogLevel.INFO,
            role=self.role.without_policy_updates(),
            current_version_options=lambda_.VersionOptions(removal_policy=RemovalPolicy.RETAIN_ON_UPDATE_OR_DELETE),
        )
        excuse(self.function, "L1", f"python{RUNTIME} is the newest runtime that our dependencies are built for")
        # Before its rights are there, the service refuses to make what uses them.
        self.function.node.add_dependency(self.policy)
        if network := network_of(part, flow):
            resource = cast("lambda_.CfnFunction", self.function.node.default_child)
            resource.vpc_config = lambda_.CfnFunction.VpcConfigProperty(
                subnet_ids=list(network.subnets), security_group_ids=list(network.security_groups)
            )
        self.alias = lambda_.Alias(self, "Alias", alias_name=ALIAS, version=self.function.current_version)


def _not_for_code(flow: FlowDeployment, part: Part, rights: Sequence[Right]) -> Iterator[iam.PolicyStatement]:
    """Keep from our code what only Lambda itself does with the role: to make and delete network interfaces.

    (https://docs.aws.amazon.com/lambda/latest/dg/configuration-vpc.html)
    """
    if actions := sorted({action for right in rights for action in right.actions if action.startswith("ec2:")}):
        yield iam.PolicyStatement(
            effect=iam.Effect.DENY,
            actions=actions,
            resources=["*"],
            conditions={"ArnEquals": {"lambda:SourceFunctionArn": flow.function_arn(part)}},
        )


def add_log_group(scope: Construct, name: str, *, deployment: Deployment, key: kms.IKey | None) -> logs.LogGroup:
    """Make the log group `name`, as `Log` of the scope."""
    log = logs.LogGroup(
        scope,
        "Log",
        log_group_name=name,
        retention=logs.RetentionDays.ONE_MONTH,  # replaced below: the enumeration has no way from a number
        removal_policy=RemovalPolicy.DESTROY,  # retained, its name would be taken when the stack is made anew
        encryption_key=key,
    )
    cast("logs.CfnLogGroup", log.node.default_child).retention_in_days = deployment.settings.log_retention_days
    return log


def add_policies(scope: Construct, role: iam.Role, rights: Sequence[Right], *, path: str) -> iam.Policy:
    """Give a role its rights. Returns the inline policy; what depends on it comes after the managed ones, too.

    Args:
        scope: what they are part of.
        role: whose they are.
        rights: what it may do.
        path: of managed policies, as of roles: the rights of who deploys end there.
    """
    inline, *managed = divided(rights)
    policy = iam.Policy(scope, "Policy", roles=[role], statements=[right.statement() for right in inline])
    acknowledge(policy, inline)
    for number, more in enumerate(managed, start=1):
        added = iam.ManagedPolicy(
            policy, f"Managed{number}", path=path, roles=[role], statements=[right.statement() for right in more]
        )
        acknowledge(added, more)
    return policy
