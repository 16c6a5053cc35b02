"""A flow's dashboard and alarms as resources, and a topic for an e-mail address.

What is decided stands in `alarms` and `dashboard` as plain values; here it is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aws_cdk import Duration, RemovalPolicy
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sns_subscriptions as subscriptions
from constructs import Construct

from infra.monitoring.alarms import Alarm, alarms, flow_alarm, pull_alarms
from infra.monitoring.dashboard import dashboard_body

if TYPE_CHECKING:
    from infra.deployment import Deployment, FlowDeployment, Location


class FlowMonitoring(Construct):
    """The dashboard of one flow, its alarms but for those that are made beside `pull`, and one of all of these."""

    def __init__(self, scope: Construct, id_: str, *, deployment: Deployment, flow: FlowDeployment) -> None:
        super().__init__(scope, id_)
        settings = deployment.settings.alarms
        wanted = alarms(flow, record_age_seconds=settings.record_age_seconds)
        made = [add_alarm(self, alarm, deployment=deployment, flow=flow) for alarm in wanted]
        whole = cloudwatch.CfnCompositeAlarm(
            self,
            "Alarm",
            alarm_name=flow_alarm(flow),
            alarm_description=f"An alarm of {flow.name} is raised. It notifies nobody: each of them does.",
            alarm_rule=" OR ".join(f'ALARM("{alarm.name(flow)}")' for alarm in wanted),
        )
        for each in made:
            # CloudWatch refuses a rule about alarms that do not exist, and to delete those that a rule is about.
            whole.add_resource_dependency(each)
        beside = pull_alarms(flow, record_age_seconds=settings.record_age_seconds) if flow.pull == flow.home else []
        names = [flow_alarm(flow), *(alarm.name(flow) for alarm in (*wanted, *beside))]
        cloudwatch.CfnDashboard(
            self,
            "Dashboard",
            dashboard_name=f"{flow.flow.deployment}-{flow.id}",
            dashboard_body=dashboard_body(
                flow,
                alarm_arns=[flow.home.arn("cloudwatch", f"alarm:{name}") for name in names],
                runbook=settings.runbook_url,
                per_topic=deployment.settings.metrics_per_topic,
            ),
        )


class OnCallTopic(Construct):
    """A topic for an address, encrypted with a key of its own.

    CloudWatch may not use AWS's key for SNS, and would fail in silence; so might a customer's key, whose policy is not
    ours. (https://docs.aws.amazon.com/sns/latest/dg/sns-key-management.html)
    """

    def __init__(self, scope: Construct, id_: str, *, deployment: Deployment, place: Location, address: str) -> None:
        super().__init__(scope, id_)
        caller = iam.ServicePrincipal("cloudwatch.amazonaws.com")
        ours = {
            "StringEquals": {"aws:SourceAccount": place.account},
            "ArnLike": {"aws:SourceArn": place.arn("cloudwatch", f"alarm:{deployment.settings.name}-*")},
        }
        key = kms.Key(
            self,
            "Key",
            description="Messages of Mirrorless's alarms on their way",
            enable_key_rotation=True,
            pending_window=Duration.days(7),
            removal_policy=RemovalPolicy.DESTROY,  # no message rests in the topic
        )
        key.add_to_resource_policy(
            iam.PolicyStatement(
                actions=["kms:Decrypt", "kms:GenerateDataKey*"],
                resources=["*"],  # a key's policy is about that key only
                principals=[caller],
                conditions=ours,
            )
        )
        topic = sns.Topic(self, "Topic", topic_name=topic_name(deployment), master_key=key, enforce_ssl=True)
        topic.add_to_resource_policy(
            iam.PolicyStatement(
                actions=["sns:Publish"], resources=[topic.topic_arn], principals=[caller], conditions=ours
            )
        )
        topic.add_subscription(subscriptions.EmailSubscription(address))


def alarm_topics(deployment: Deployment, place: Location) -> tuple[str, ...]:
    """The ARNs of the topics that the alarms of a place notify."""
    named = tuple(arn for arn in deployment.settings.alarms.topic_arns if arn.split(":")[3] == place.region)
    return (*named, place.arn("sns", topic_name(deployment))) if deployment.settings.alarms.email else named


def topic_name(deployment: Deployment) -> str:
    """The name of our own topic, where an address is named: one in each place."""
    return f"{deployment.settings.name}-alarms"


def add_alarm(
    scope: Construct, alarm: Alarm, *, deployment: Deployment, flow: FlowDeployment, place: Location | None = None
) -> cloudwatch.CfnAlarm:
    """Make one alarm of a flow, which notifies the topics of its place. Args: place: left out, the flow's home."""
    topics = list(alarm_topics(deployment, place or flow.home))
    watched = alarm.metric
    return cloudwatch.CfnAlarm(
        scope,
        f"Alarm-{alarm.id}",
        alarm_name=alarm.name(flow),
        alarm_description=alarm.description(deployment.settings.alarms.runbook_url),
        comparison_operator="LessThanThreshold" if alarm.silence else "GreaterThanThreshold",
        threshold=alarm.threshold,
        evaluation_periods=alarm.evaluation_periods,
        datapoints_to_alarm=alarm.datapoints_to_alarm or alarm.evaluation_periods,
        treat_missing_data="breaching" if alarm.silence else "notBreaching",
        alarm_actions=topics,
        ok_actions=topics if alarm.resolves else None,
        namespace=watched.namespace,
        metric_name=watched.name,
        statistic=watched.stat,
        period=alarm.period,
        dimensions=[
            cloudwatch.CfnAlarm.DimensionProperty(name=name, value=value) for name, value in watched.dimensions
        ],
    )
