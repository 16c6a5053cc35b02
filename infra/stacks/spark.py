"""The Spark stack: an application for each cluster beside which jobs run, a role for each flow, the jobs' artifacts.

A job run is no resource: whoever starts one reads from a parameter of its flow what to submit it with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aws_cdk import Annotations, CfnOutput, Stack
from aws_cdk import aws_emrserverless as emr
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_ssm as ssm
from aws_cdk.aws_s3_assets import Asset
from constructs import Construct

from infra import spark_settings
from infra.constructs.endpoints import add_endpoints
from infra.constructs.flow_function import add_log_group, add_policies
from infra.iam import statements
from infra.monitoring.flow_monitoring import JobRule, OnCallTopic
from infra.packaging.assets import spark_artifacts
from infra.packaging.bundle import own_modules
from infra.stacks import PlacedStack
from mirrorless.jobs.submission import parameter_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from infra.deployment import Deployment, FlowDeployment, Location


class SparkStack(PlacedStack):
    """The Spark stack of one place."""

    def __init__(self, scope: Construct, *, deployment: Deployment, place: Location) -> None:
        super().__init__(
            scope,
            "spark",
            deployment=deployment,
            place=place,
            description="applications for jobs",
            assets=spark_settings.artifacts_prefix(deployment.settings.name),
        )
        flows = deployment.flows_at("jobs", place)
        artifacts = _deployed(self, deployment)
        add_endpoints(self, deployment, place, made_by="jobs")
        applications = {
            name: SparkApplication(self, name, deployment=deployment, flow=flow)
            for name, flow in sorted({spark_settings.application_name(flow): flow for flow in flows}.items())
        }
        elsewhere = {*deployment.homes, *deployment.pulls, *deployment.standbys}  # there another stack makes the topic
        if (address := deployment.settings.alarms.email) and place not in elsewhere:
            OnCallTopic(self, "OnCall", deployment=deployment, place=place, address=address)
        for name, application in applications.items():
            JobRule(
                application,
                "Died",
                deployment=deployment,
                place=place,
                application=name,
                application_id=application.resource.attr_application_id,
                flows=[flow for flow in flows if spark_settings.application_name(flow) == name],
            )
        for flow in flows:
            application = applications[spark_settings.application_name(flow)]
            FlowJobs(self, flow.id, deployment=deployment, flow=flow, application=application, artifacts=artifacts)


class SparkApplication(Construct):
    """Where jobs run beside one cluster.

    Attributes:
        name: the application's name.
        resource: the application.
    """

    def __init__(self, scope: Construct, id_: str, *, deployment: Deployment, flow: FlowDeployment) -> None:
        """Make it. Args: flow: any of the flows whose jobs run there."""
        super().__init__(scope, id_)
        self.name = spark_settings.application_name(flow)
        spark, key_arn = deployment.settings.spark, deployment.kms_key(flow.jobs)
        key = kms.Key.from_key_arn(self, "Key", key_arn) if key_arn else None
        log = add_log_group(self, spark_settings.log_group(self.name), deployment=deployment, key=key)
        self.resource = emr.CfnApplication(
            self,
            "Application",
            name=self.name,
            release_label=spark_settings.RELEASE,
            type="SPARK",
            architecture=spark.architecture.upper(),
            auto_start_configuration=emr.CfnApplication.AutoStartConfigurationProperty(enabled=True),
            auto_stop_configuration=emr.CfnApplication.AutoStopConfigurationProperty(
                enabled=True, idle_timeout_minutes=spark_settings.IDLE_MINUTES
            ),
            # Workers' disks are bounded by the workers; a bound of their own would be one more to fit together.
            maximum_capacity=emr.CfnApplication.MaximumAllowedResourcesProperty(
                cpu=f"{spark.maximum_vcpu}vCPU", memory=f"{spark.maximum_memory_gb}GB"
            ),
            scheduler_configuration=emr.CfnApplication.SchedulerConfigurationProperty(
                max_concurrent_runs=spark_settings.most_runs(spark), queue_timeout_minutes=spark_settings.QUEUE_MINUTES
            ),
            interactive_configuration=emr.CfnApplication.InteractiveConfigurationProperty(
                livy_endpoint_enabled=False, studio_enabled=False
            ),
            runtime_configuration=[
                emr.CfnApplication.ConfigurationObjectProperty(
                    classification="spark-defaults", properties=spark_settings.spark_defaults(spark)
                )
            ],
            monitoring_configuration=emr.CfnApplication.MonitoringConfigurationProperty(
                cloud_watch_logging_configuration=emr.CfnApplication.CloudWatchLoggingConfigurationProperty(
                    enabled=True, log_group_name=log.log_group_name
                ),
                # Without it, there are no Spark pages to look at; it ends by itself after 30 days.
                managed_persistence_monitoring_configuration=(
                    emr.CfnApplication.ManagedPersistenceMonitoringConfigurationProperty(
                        enabled=True, encryption_key_arn=key_arn
                    )
                ),
            ),
        )
        alias, reach = flow.flow.jobs_home.alias, flow.flow.jobs_home.vpc
        if reach:
            self.resource.network_configuration = emr.CfnApplication.NetworkConfigurationProperty(
                subnet_ids=list(reach.subnets), security_group_ids=list(reach.security_groups)
            )
        else:
            Annotations.of(self).add_warning_v2(
                "mirrorless:jobs-without-network",
                f"jobs beside {alias} reach no broker: EMR Serverless has no way out of AWS's own services without a "
                f"network; write `vpc` under clusters.{alias}, or `spark: {{enabled: false}}` under deployment",
            )
        CfnOutput(self, "Id", value=self.resource.attr_application_id, description=f"Application {self.name}")


class FlowJobs(Construct):
    """What the jobs of one flow run as, and are submitted with."""

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        deployment: Deployment,
        flow: FlowDeployment,
        application: SparkApplication,
        artifacts: Mapping[str, Asset],
    ) -> None:
        """Make it. Args: artifacts: `package`, `environment`, and the scripts by the names of their jobs."""
        super().__init__(scope, id_)
        place, key = flow.jobs, deployment.kms_key(flow.jobs)
        application_arn = application.resource.attr_arn
        role = iam.Role(
            self,
            "Role",
            role_name=spark_settings.role_name(flow),
            description=f"jobs of {flow.id}",
            assumed_by=iam.ServicePrincipal(
                "emr-serverless.amazonaws.com",
                conditions={
                    "StringEquals": {"aws:SourceAccount": place.account},
                    "ArnLike": {"aws:SourceArn": [application_arn, f"{application_arn}/jobruns/*"]},
                },
            ),
        )
        prefix = spark_settings.artifacts_prefix(deployment.settings.name)
        buckets = {each.s3_bucket_name for each in artifacts.values()}
        rights = [
            *statements.rights("jobs", flow),
            *statements.storage_rights(
                flow,
                bucket=flow.bucket_name,
                prefix=spark_settings.prefix(flow),
                artifacts=[f"arn:{place.partition}:s3:::{bucket}/{prefix}*" for bucket in sorted(buckets)],
                log_group=spark_settings.log_group(application.name),
                key=key,
            ),
        ]
        policy = add_policies(self, role, rights, path=flow.role_path("jobs"))
        uris = {name: each.s3_object_url for name, each in artifacts.items()}
        package, environment = uris.pop("package"), uris.pop("environment")
        submission = {
            "application_id": application.resource.attr_application_id,
            "role_arn": place.iam_arn(f"role/{spark_settings.role_name(flow)}"),
            "bucket": flow.bucket_name,
            "prefix": spark_settings.prefix(flow),
            "kms_key_arn": key,
            "log_group": spark_settings.log_group(application.name),
            "most_executors": spark_settings.most_executors(deployment.settings.spark),
            "architecture": deployment.settings.spark.architecture,
            "jobs": uris,
            "confs": spark_settings.submit_confs(
                package=package, environment=environment, variables=flow.metrics_variables
            ),
        }
        parameter = ssm.StringParameter(
            self,
            "Submission",
            parameter_name=parameter_name(flow.flow.name, deployment=flow.flow.deployment),
            description=f"How jobs of {flow.id} are submitted",
            string_value=Stack.of(self).to_json_string(submission),
        )
        parameter.node.add_dependency(policy)  # whoever can read it can start a job that works
        CfnOutput(self, "RoleArn", value=role.role_arn, description=f"Role of the jobs of {flow.id}")
        CfnOutput(self, "Parameter", value=parameter.parameter_name, description=f"How to submit jobs of {flow.id}")


def _deployed(stack: SparkStack, deployment: Deployment) -> dict[str, Asset]:
    rules = [rule for flow in deployment.flows for rule in flow.flow.rules]
    own = own_modules(rules, deployment.configuration.origin)
    found = spark_artifacts(stack, deployment.settings.spark.architecture, own)
    scope = Construct(stack, "Artifacts")
    assets = {name: Asset(scope, name, path=str(each.path), asset_hash=each.hash) for name, each in found.items()}
    for name, asset in assets.items():
        CfnOutput(scope, f"{name}-uri", value=asset.s3_object_url, description=f"What jobs are made of: {name}")
    return assets
