"""A flow's dashboard and alarms as resources, a rule about jobs that die, and a topic for an e-mail address.

What is decided stands in `alarms` and `dashboard` as plain values; here it is made.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_events as events
from aws_cdk import aws_iam as iam
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sns_subscriptions as subscriptions
from constructs import Construct

from infra.monitoring.alarms import Alarm, alarms, flow_alarm, job_died, pull_alarms
from infra.monitoring.dashboard import dashboard_body

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    """A topic for an address. Its messages name alarms only, and lie on disks that SNS encrypts.

    A key of KMS would be ours, since CloudWatch and EventBridge may not use AWS's, and a customer's may not let them:
    then an alarm fails in silence. And who makes keys may rewrite the policy of any other. Where a key is demanded,
    `topic.arns` names a topic that has one. (https://docs.aws.amazon.com/sns/latest/dg/sns-data-encryption.html)
    """

    def __init__(self, scope: Construct, id_: str, *, deployment: Deployment, place: Location, address: str) -> None:
        super().__init__(scope, id_)
        caller, rules = (iam.ServicePrincipal(f"{each}.amazonaws.com") for each in ("cloudwatch", "events"))
        ours, of_rules = (
            {
                "StringEquals": {"aws:SourceAccount": place.account},
                "ArnLike": {"aws:SourceArn": place.arn(service, f"{kind}{deployment.settings.name}-*")},
            }
            for service, kind in (("cloudwatch", "alarm:"), ("events", "rule/"))
        )
        topic = sns.Topic(self, "Topic", topic_name=topic_name(deployment), enforce_ssl=True)
        for principal, conditions in ((caller, ours), (rules, of_rules)):
            topic.add_to_resource_policy(
                iam.PolicyStatement(
                    actions=["sns:Publish"], resources=[topic.topic_arn], principals=[principal], conditions=conditions
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


class JobRule(Construct):
    """What tells the topics of a place of each job run of an application that has failed or was cancelled.

    An event names the job run, and neither our id of it nor its flow: the message says how to ask for them. It takes
    what EMR Serverless makes itself, so nothing that a client or a broker wrote comes into it.
    (https://docs.aws.amazon.com/emr/latest/EMR-Serverless-UserGuide/using-eventbridge.html)
    """

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        deployment: Deployment,
        place: Location,
        application: str,
        application_id: str,
        flows: Sequence[FlowDeployment],
    ) -> None:
        """Make it. Args: application: its name. flows: whose jobs run there."""
        super().__init__(scope, id_)
        topics = alarm_topics(deployment, place)
        if not topics:
            return
        text = job_died(place, flows, application, deployment.settings.alarms.runbook_url)
        message = events.CfnRule.InputTransformerProperty(
            input_paths_map={
                "run": "$.detail.jobRunId",
                "application": "$.detail.applicationId",
                "state": "$.detail.state",
                "at": "$.time",
            },
            input_template=json.dumps(text, ensure_ascii=False),
        )
        events.CfnRule(
            self,
            "Rule",
            name=f"{application}-job-died",
            description=f"Job runs of {application} that have failed or were cancelled",
            event_pattern={
                "source": ["aws.emr-serverless"],
                "detail-type": ["EMR Serverless Job Run State Change"],
                # The service cancels a run that exceeds its time. Who cancels one by hand is told what is left open.
                "detail": {"applicationId": [application_id], "state": ["FAILED", "CANCELLED"]},
            },
            targets=[
                events.CfnRule.TargetProperty(arn=arn, id=f"Topic{number}", input_transformer=message)
                for number, arn in enumerate(topics)
            ],
        )
