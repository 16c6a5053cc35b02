"""Who deploys may do what CloudFormation's handlers call on what is deployed, and reaches nothing else.

What an action is about is read from the Service Authorization Reference, as cfn-lint ships it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from aws_cdk import App, Stack
from aws_cdk import aws_iam as iam
from aws_cdk.assertions import Template

from infra.constructs.flow_function import add_policies
from infra.iam import ATTACHED, MANAGED, Right, execution_policy
from tests.support.assembly import EXAMPLES, Assembly
from tests.support.iam import Context, Statement, allowed, granted_anywhere, many, reference

Assembled = Callable[[str], Assembly]

# Types


def test_every_resource_type_of_every_example_says_what_it_calls(assembled: Assembled) -> None:
    """A type without a word would be found by a deployment that stops half way."""
    types = {resource.type for example in EXAMPLES for resource in assembled(example).resources()}

    found = {type_: execution_policy.actions_of(type_) for type_ in types}

    assert {type_ for type_, actions in found.items() if not actions} <= {"AWS::CloudFormation::WaitConditionHandle"}
    for type_ in (each for each in types if each.startswith("AWS::")):
        service = type_.split("::")[1].lower().replace("emrserverless", "emr-serverless")
        assert any(each.startswith(f"{service}:") for each in found[type_]) or not found[type_], type_
    custom = [found[type_] for type_ in types if type_.startswith("Custom::")]
    assert custom == [{"lambda:InvokeFunction"}] * len(custom)


@pytest.mark.parametrize("type_", ["AWS::CDK::Metadata", "AWS::No::Such"])
def test_a_type_without_documented_actions_is_an_error(type_: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution_policy, "_WITHOUT_HANDLERS", {})

    with pytest.raises(execution_policy.UnknownType, match=rf"{type_}.*add them"):
        execution_policy.actions_of(type_)


# The policies


DEPLOYED: Context = {
    "iam:PermissionsBoundary": "arn:aws:iam::111122223333:policy/ours",
    "iam:PassedToService": "lambda.amazonaws.com",
    "lambda:FunctionArn": "arn:aws:lambda:us-east-1:111122223333:function:mirrorless-forward-a_b:live",
}
NAMED = {
    "AWS::CloudWatch::Alarm": "cloudwatch:{place}:alarm:{AlarmName}",
    "AWS::CloudWatch::CompositeAlarm": "cloudwatch:{place}:alarm:{AlarmName}",
    "AWS::CloudWatch::Dashboard": "cloudwatch::111122223333:dashboard/{DashboardName}",
    "AWS::DynamoDB::GlobalTable": "dynamodb:{place}:table/{TableName}",
    "AWS::EMRServerless::Application": "emr-serverless:{place}:/applications/00f",
    "AWS::Events::Rule": "events:{place}:rule/{Name}",
    "AWS::IAM::Role": "iam::111122223333:role{Path}{RoleName}",
    "AWS::Lambda::EventSourceMapping": "lambda:{place}:event-source-mapping:14e0db71-5d35-4eb5-b481-8945cf9d10c2",
    "AWS::Lambda::Function": "lambda:{place}:function:{FunctionName}:live",
    "AWS::Logs::LogGroup": "logs:{place}:log-group:{LogGroupName}:log-stream:",
    "AWS::S3::Bucket": "s3:::{BucketName}",
    "AWS::S3::BucketPolicy": "s3:::mirrorless-111122223333-us-east-1/flows/report.json",
    "AWS::SNS::Topic": "sns:{place}:{TopicName}",
    "AWS::SSM::Parameter": "ssm:{place}:parameter{Name}",
    "AWS::Scheduler::Schedule": "scheduler:{place}:schedule/mirrorless/{Name}",
    "AWS::Scheduler::ScheduleGroup": "scheduler:{place}:schedule-group/{Name}",
}
"""The ARNs of what templates make, behind the partition, by properties."""

FOREIGN = {
    *("DeleteGroupPolicy", "GetGroupPolicy", "PutGroupPolicy", "DeleteUserPolicy", "GetUserPolicy", "PutUserPolicy"),
    *("DeleteScalingPolicy", "DeleteScheduledAction", "DeregisterScalableTarget"),
    *("PutScalingPolicy", "PutScheduledAction", "RegisterScalableTarget"),
    *("GetCodeSigningConfig", "GetLayerVersion", "PassCapacityProvider"),
    *("CreateGrant", "Decrypt", "Encrypt", "GenerateDataKey", "RevokeGrant"),
}
"""Actions of handlers that are about nothing of any example's: there is no user, no layer, no key of a customer."""


def made(assembly: Assembly) -> Iterator[str]:
    """The ARN of all that a deployment makes, and of what it reads of the bootstrap's."""
    for resource in assembly.resources():
        if pattern := NAMED.get(resource.type):
            absent = {"Path": "/", "RoleName": "made", "place": "us-east-1:111122223333"}
            yield "arn:aws:" + pattern.format_map({**absent, **resource.properties})
    yield "arn:aws:s3:::cdk-hnb659fds-assets-111122223333-us-east-1/code.zip"
    yield "arn:aws:ssm:us-east-1:111122223333:parameter/cdk-bootstrap/hnb659fds/version"
    yield "arn:aws:iam::111122223333:role/aws-service-role/replication.dynamodb.amazonaws.com/AWSServiceRoleForX"


def kinds(action: str) -> list[str]:
    """Expressions for the ARNs that an action can be about, by the reference."""
    known = reference()[action.partition(":")[0]]
    named = known["Actions"].get(action.partition(":")[2].lower(), {"Resources": known["Resources"]})
    formats = {
        each.replace(".*", ".*/.*" if kind == "object" else "[^/]*") if ":s3:" in each else each
        for kind in named.get("Resources", [])
        for each in known["Resources"][kind.lower()]["ARNFormats"]
    }
    return [re.sub(r"\$\{\w+\}", "[^:]*", each) for each in formats]


def execution_statements(assembly: Assembly, boundary: str = "") -> list[Statement]:
    return [
        each for policy in execution_policy.policies(assembly.folder, boundary=boundary) for each in policy["Statement"]
    ]


@pytest.mark.parametrize("example", EXAMPLES)
def test_who_deploys_may_do_what_handlers_call_on_what_is_made(example: str, assembled: Assembled) -> None:
    assembly = assembled(example)
    statements, arns = execution_statements(assembly, "ours"), list(dict.fromkeys(made(assembly)))
    reads = {"parameter/cdk-bootstrap": ("ssm:GetParameters",), "s3:::cdk-": ("s3:GetObject", "s3:GetObjectVersion")}

    def refused(action: str) -> Iterator[tuple[str, str]]:
        about = [arn for arn in arns if any(re.fullmatch(each, arn) for each in kinds(action))]
        for arn in about or ["*"]:
            only = next((actions for part, actions in reads.items() if part in arn), (action,))
            linked = "aws-service-role" in arn and action != "iam:CreateServiceLinkedRole"
            if action in only and not linked and not allowed(statements, action, arn, DEPLOYED):
                yield action, arn

    wanted = execution_policy.actions({each.type for each in assembly.resources()})
    lacking = [pair for action in wanted if action != "iam:DeleteRolePermissionsBoundary" for pair in refused(action)]
    assert [pair for pair in lacking if pair[0].partition(":")[2] not in FOREIGN] == []
    assert allowed(statements, "cloudwatch:PutCompositeAlarm", "*"), "CloudWatch takes no narrower permission"


@pytest.mark.parametrize("example", EXAMPLES)
def test_each_policy_is_one_that_iam_takes(example: str, assembled: Assembled) -> None:
    policies = list(execution_policy.policies(assembled(example).folder, boundary="ours"))

    actions = [action for policy in policies for each in policy["Statement"] for action in many(each["Action"])]
    assert all(re.fullmatch(r"[a-z0-9-]+:[A-Za-z]+\*?", action) for action in actions)
    assert all(len(json.dumps(policy, separators=(",", ":"))) <= MANAGED for policy in policies)
    assert len(policies) <= ATTACHED
    assert "dynamodb:DescribeTable" not in actions, "a pattern covers it"
    assert "lambda:PassCapacityProvider" not in actions, "no function runs on managed instances"


ESCALATIONS = """
iam:CreatePolicyVersion | iam:SetDefaultPolicyVersion | iam:CreateAccessKey | iam:CreateLoginProfile
iam:UpdateLoginProfile | iam:DeleteAccessKey iam:CreateAccessKey | iam:AttachUserPolicy | iam:AttachGroupPolicy
iam:AttachRolePolicy | iam:PutUserPolicy | iam:PutGroupPolicy | iam:PutRolePolicy | iam:AddUserToGroup
iam:UpdateAssumeRolePolicy | iam:AttachRolePolicy iam:UpdateAssumeRolePolicy | iam:PutRolePolicy sts:AssumeRole
iam:CreatePolicyVersion sts:AssumeRole | iam:AttachUserPolicy iam:CreateAccessKey
iam:PutUserPolicy iam:CreateAccessKey | iam:CreateServiceSpecificCredential
iam:DeleteRolePermissionsBoundary | iam:PutRolePermissionsBoundary | iam:DeleteUserPermissionsBoundary
iam:PutUserPermissionsBoundary | iam:DeleteRolePolicy | iam:DetachRolePolicy | iam:DeleteUserPolicy
iam:CreateRole iam:PutRolePolicy | iam:CreateRole iam:AttachRolePolicy | iam:CreateUser
iam:ResyncMFADevice | iam:DeactivateMFADevice | iam:UpdateSAMLProvider | iam:UpdateOpenIDConnectProviderThumbprint
iam:AddClientIDToOpenIDConnectProvider | iam:CreateOpenIDConnectProvider | iam:CreateInstanceProfile
iam:PassRole iam:AddRoleToInstanceProfile | sts:AssumeRole | sts:GetFederationToken
iam:PassRole lambda:CreateFunction lambda:InvokeFunction | iam:PassRole lambda:CreateFunction lambda:AddPermission
iam:PassRole lambda:CreateFunction lambda:CreateEventSourceMapping | lambda:UpdateFunctionCode
lambda:UpdateFunctionCode lambda:InvokeFunction | lambda:UpdateFunctionCode lambda:AddPermission
lambda:UpdateFunctionConfiguration | lambda:PublishLayerVersion lambda:UpdateFunctionConfiguration
lambda:AddPermission | lambda:CreateFunctionUrlConfig | lambda:InvokeFunction | lambda:UpdateEventSourceMapping
iam:PassRole ec2:RunInstances | iam:PassRole ec2:RequestSpotInstances | ec2:ReplaceIamInstanceProfileAssociation
ec2:ModifyInstanceAttribute | ec2:CreateLaunchTemplateVersion ec2:ModifyLaunchTemplate
ec2-instance-connect:SendSSHPublicKey | ssm:StartSession | ssm:SendCommand | iam:PassRole ssm:StartAutomationExecution
iam:PassRole glue:CreateDevEndpoint | glue:UpdateDevEndpoint | iam:PassRole glue:CreateJob glue:StartJobRun
iam:PassRole glue:CreateJob glue:CreateTrigger | iam:PassRole glue:UpdateJob glue:StartJobRun
iam:PassRole glue:CreateSession glue:RunStatement
iam:PassRole cloudformation:CreateStack | cloudformation:UpdateStack | cloudformation:SetStackPolicy
iam:PassRole cloudformation:CreateStackSet cloudformation:CreateStackInstances | cloudformation:UpdateStackSet
cloudformation:CreateChangeSet cloudformation:ExecuteChangeSet
iam:PassRole ecs:RegisterTaskDefinition ecs:RunTask | iam:PassRole ecs:RegisterTaskDefinition ecs:CreateService
iam:PassRole ecs:RegisterTaskDefinition ecs:StartTask | iam:PassRole ecs:RunTask | ecs:ExecuteCommand
iam:PassRole emr-serverless:CreateApplication emr-serverless:StartJobRun | iam:PassRole emr-serverless:StartJobRun
iam:PassRole elasticmapreduce:RunJobFlow | iam:PassRole batch:RegisterJobDefinition batch:SubmitJob | batch:SubmitJob
iam:PassRole codebuild:CreateProject codebuild:StartBuild | codebuild:StartBuild | codebuild:UpdateProject
iam:PassRole codepipeline:CreatePipeline | iam:PassRole codestar:CreateProject | codedeploy:CreateDeployment
iam:PassRole apprunner:CreateService | apprunner:UpdateService | iam:PassRole amplify:CreateApp
iam:PassRole sagemaker:CreateNotebookInstance | sagemaker:CreatePresignedNotebookInstanceUrl
iam:PassRole sagemaker:CreateTrainingJob | iam:PassRole sagemaker:CreateProcessingJob
sagemaker:UpdateNotebookInstanceLifecycleConfig | iam:PassRole datapipeline:CreatePipeline
iam:PassRole bedrock-agentcore:CreateCodeInterpreter | bedrock-agentcore:InvokeCodeInterpreter
iam:PassRole states:CreateStateMachine states:StartExecution | states:UpdateStateMachine
iam:PassRole scheduler:CreateSchedule | scheduler:UpdateSchedule | iam:PassRole events:PutRule events:PutTargets
iam:PassRole imagebuilder:CreateInfrastructureConfiguration | iam:PassRole braket:CreateJob
iam:PassRole gamelift:CreateBuild | iam:PassRole kinesisanalytics:CreateApplication | iam:PassRole omics:StartRun
cognito-identity:SetIdentityPoolRoles | organizations:AttachPolicy
kms:PutKeyPolicy | kms:CreateGrant | kms:Decrypt | kms:ScheduleKeyDeletion | kms:CreateKey | kms:TagResource
s3:PutBucketPolicy | s3:PutBucketAcl | s3:GetObject | s3:PutObject | s3:ListBucket | s3:DeleteBucketPolicy
s3:PutBucketPublicAccessBlock | s3:PutBucketNotification | s3:PutReplicationConfiguration
secretsmanager:GetSecretValue | secretsmanager:PutResourcePolicy | ssm:GetParameters | ssm:PutParameter
dynamodb:PutResourcePolicy | dynamodb:PutItem | dynamodb:Scan | sns:SetTopicAttributes | logs:DeleteLogGroup
"""
"""Paths by which rights grow, divided by bars; each is the actions that it takes. Resources' own policies come last.
https://github.com/RhinoSecurityLabs/AWS-IAM-Privilege-Escalation, https://pathfinding.cloud"""

PATHS = [tuple(each.split()) for each in ESCALATIONS.strip().replace("\n", " | ").split(" | ")]
OTHERS = ("admin", "cdk-hnb659fds-cfn-exec-role-111122223333-us-east-1", "mirrorless-boundary", "mirrorless-deploy-1")
"""Names in IAM of what is not the deployment's: CloudFormation's own role, what bounds a role and allows to deploy."""


BOUNDED = {f"iam:{verb}" for verb in ("CreateRole", "AttachRolePolicy", "PutRolePolicy")}
BOUNDED |= {f"iam:{verb}RolePermissionsBoundary" for verb in ("Put", "Delete")}
"""What gives rights to a role, also one of ours: it must have the boundary, which no request of these paths has."""


def is_open(statements: Sequence[Statement], path: tuple[str, ...]) -> bool:
    """Whether each action of a path is allowed on something that is not ours, however it is asked for.

    What a path makes to run as another's role may have any name, also one of ours; the role is another's.
    """

    def is_possible(action: str) -> bool:
        new = action.startswith(("lambda:", "scheduler:", "emr-serverless:")) and "iam:PassRole" in path
        ours = ("mirrorless-x",) if new else ("mirrorless/x",) if action in BOUNDED else ()
        names = (*(OTHERS if action.startswith("iam:") else OTHERS[:1]), *ours)
        targets = {
            re.sub(r"\.\*|\[\^/\]\*", name, each).replace("arn:[^:]*:", "arn:aws:").replace("[^:]*", "1")
            for each in kinds(action) or ["*"]
            for name in names
        }
        services = ("lambda", "scheduler", "emr-serverless", "ec2", "cloudformation", "glue")
        contexts: list[Context] = [
            {},
            *({"iam:PassedToService": f"{service}.amazonaws.com"} for service in services),
            {"iam:PermissionsBoundary": "arn:aws:iam::111122223333:policy/other"},
            {"lambda:FunctionArn": "arn:aws:lambda:us-east-1:111122223333:function:admin"},
        ]
        return any(allowed(statements, action, arn, context) for arn in targets for context in contexts)

    return all(map(is_possible, path))


@pytest.mark.parametrize("example", ["cross-account", "data-isolation", "long-tail"])
def test_no_path_leads_from_who_deploys_or_what_is_deployed_to_rights_of_others(
    example: str, assembled: Assembled
) -> None:
    assembly = assembled(example)
    boundary = execution_policy.boundary_of(assembly.folder)["Statement"]

    statements = execution_statements(assembly, "ours")
    assert [path for path in PATHS if is_open(statements, path)] == []
    assert [path for path in PATHS if is_open(boundary, path)] == []
    role, to_ec2 = "arn:aws:iam::111122223333:role/mirrorless-jobs-x", {"iam:PassedToService": "ec2.amazonaws.com"}
    assert not allowed(statements, "iam:PassRole", role, to_ec2)


def test_each_path_would_be_seen(assembled: Assembled) -> None:
    """By whoever may do everything, or all that it does to anything."""
    everything: list[Statement] = [{"Effect": "Allow", "Action": "*", "Resource": "*"}]
    wide = [{**each, "Resource": "*", "Condition": {}} for each in execution_statements(assembled("active-active"))]

    assert [path for path in PATHS if not is_open(everything, path)] == []
    seen = {"iam:PutRolePolicy", "iam:UpdateAssumeRolePolicy", "lambda:UpdateFunctionCode", "s3:PutBucketPolicy"}
    assert {path[0] for path in PATHS if len(path) == 1 and is_open(wide, path)} >= seen
    assert is_open(wide, ("iam:PassRole", "lambda:CreateFunction", "lambda:InvokeFunction"))


@pytest.mark.parametrize("example", EXAMPLES)
def test_a_boundary_has_what_any_role_is_allowed(example: str, assembled: Assembled) -> None:
    assembly = assembled(example)
    boundary = execution_policy.boundary_of(assembly.folder)["Statement"]

    beyond = [
        (action, arn)
        for _, action, resource in granted_anywhere(assembly)
        if isinstance(resource, str)
        and not allowed(boundary, action, arn := resource.replace("*", "x").replace("?", "x"), DEPLOYED)
        and resource != "*"
    ]
    whole = [action for _, action, resource in granted_anywhere(assembly) if resource == "*"]

    assert beyond == []
    assert [action for action in whole if not allowed(boundary, action, "*", DEPLOYED)] == []
    assert {each for _, _, each in granted_anywhere(assembly) if not isinstance(each, str)} == set()


def test_managed_policies_lie_under_the_path_of_roles() -> None:
    stack = Stack(App(), "long")
    role = iam.Role(stack, "Role", assumed_by=iam.ServicePrincipal("lambda.amazonaws.com"))
    topics = tuple(f"arn:aws:kafka:us-east-1:111122223333:topic/c/1/{number:080}" for number in range(100))

    add_policies(stack, role, [Right(actions=("kafka-cluster:ReadData",), resources=topics)], path="/staging/a_b/jobs/")

    assert all(
        each["Properties"]["Path"] == "/staging/a_b/jobs/"
        for each in Template.from_stack(stack).find_resources("AWS::IAM::ManagedPolicy").values()
    )


KEY = "arn:aws:kms:us-east-1:111122223333:key/4c8e7f90-91a2-4b3c-8d4e-5f6071829304"
NAMED_ELSEWHERE = KEY.replace("4c8e", "5d9f")
SECRETS = "arn:aws:secretsmanager:us-east-1:111122223333:secret:"


def assembly_of(folder: Path, secrets: int, connection: str = "vpc-connection") -> Path:
    """A deployment `staging` with a customer's key, a mapping, and a role that reads secrets and opens them."""
    names = [f"{SECRETS}{number:060}" for number in range(secrets)]
    read = {"Effect": "Allow", "Action": "secretsmanager:GetSecretValue", "Resource": names}
    opens = {"Effect": "Allow", "Action": "kms:Decrypt", "Resource": NAMED_ELSEWHERE}
    table = {"Replicas": [{"Region": "us-east-1", "SSESpecification": {"KMSMasterKeyId": KEY}}]}
    resources = {
        "AWS::DynamoDB::GlobalTable": table,
        "AWS::Scheduler::Schedule": {"Target": {"Input": json.dumps({"kms_key_arn": NAMED_ELSEWHERE})}},
        "AWS::Lambda::EventSourceMapping": {"EventSourceArn": f"arn:aws:kafka:us-east-1:111122223333:{connection}/c/1"},
        "AWS::IAM::Policy": {"PolicyDocument": {"Statement": [read, opens]}},
        "AWS::IAM::ManagedPolicy": {"Path": "/staging/a_b/forward/", "PolicyDocument": {"Statement": []}},
    }
    template = {"Resources": {type_[-9:]: {"Type": type_, "Properties": each} for type_, each in resources.items()}}
    stack = {"type": "aws:cloudformation:stack", "environment": "aws://111122223333/us-east-1"}
    (folder / "staging-state-us-east-1.template.json").write_text(json.dumps(template))
    (folder / "manifest.json").write_text(json.dumps({"artifacts": {"staging-state-us-east-1": stack}}))
    return folder


def test_keys_and_connections_are_those_that_are_named(tmp_path: Path) -> None:
    def may(action: str, resource: str, **context: str) -> bool:
        statements = [each for policy in execution_policy.policies(tmp_path) for each in policy["Statement"]]
        return allowed(statements, action, resource, {key.replace("_", ":"): each for key, each in context.items()})

    assembly_of(tmp_path, secrets=1)
    assert may("dynamodb:CreateTable", "arn:aws:dynamodb:us-east-1:111122223333:table/staging-lanes-a_b")
    assert not may("dynamodb:CreateTable", "arn:aws:dynamodb:us-east-1:111122223333:table/mirrorless-lanes-a_b")
    assert may("iam:CreatePolicyVersion", "arn:aws:iam::111122223333:policy/staging/a_b/forward/made")
    assert not may("iam:CreatePolicyVersion", "arn:aws:iam::111122223333:policy/staging-boundary")
    assert may("kms:Decrypt", KEY)
    assert may("kms:CreateGrant", KEY, kms_ViaService="dynamodb.us-east-1.amazonaws.com")
    assert not may("kms:CreateGrant", KEY)
    assert not may("kms:Decrypt", NAMED_ELSEWHERE), "it opens what rules have sealed, and nothing that is deployed"
    assert may("kafka:ListVpcConnections", "*")
    assembly_of(tmp_path, secrets=1, connection="cluster")
    assert not may("kafka:ListVpcConnections", "*")

    boundary = execution_policy.boundary_of(tmp_path)["Statement"]
    assert allowed(boundary, "secretsmanager:GetSecretValue", f"{SECRETS}{0:060}")
    assert not allowed(boundary, "secretsmanager:GetSecretValue", f"{SECRETS}{1:060}")
    assert allowed(boundary, "kms:Decrypt", NAMED_ELSEWHERE)


def test_a_boundary_that_iam_would_refuse_is_not_printed(tmp_path: Path) -> None:
    with pytest.raises(execution_policy.TooLong, match=r"6144.*deployment: {name"):
        execution_policy.boundary_of(assembly_of(tmp_path, secrets=60))
