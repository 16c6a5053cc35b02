"""Templates, applications and networks as AWS has them: the reading side of `make deploy`'s guard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from infra.guard.application_rules import ApplicationState
from mirrorless.errors import Retriable

if TYPE_CHECKING:
    from infra.deployment import Location

QUALIFIER: Final = "hnb659fds"
"""Of the roles of `cdk bootstrap`."""


@dataclass(slots=True)
class Lookups:
    """Reads what is deployed. Each place's role is assumed once."""

    _sessions: dict[Location, Any] = field(default_factory=dict)

    def client(self, service: str, place: Location) -> Any:
        """A client of a service in a place; raises botocore's errors where its role cannot be assumed."""
        if place not in self._sessions:
            self._sessions[place] = _session(place)
        return self._sessions[place].client(service, region_name=place.region)

    def template(self, stack: str, place: Location) -> Mapping[str, Any] | None:
        """The template of a stack as CloudFormation has it; None where there is no such stack.

        Raises:
            Retriable: CloudFormation or STS does not answer, or refuses.
        """
        try:
            answer = self.client("cloudformation", place).get_template(StackName=stack)
        except ClientError as exc:
            if exc.response["Error"]["Code"] == "ValidationError" and "does not exist" in str(exc):
                return None
            raise unread(stack, place, exc) from exc
        except BotoCoreError as exc:
            raise unread(stack, place, exc) from exc
        body: Mapping[str, Any] = answer["TemplateBody"]
        return body

    def application(self, name: str, place: Location) -> ApplicationState | None:
        """The state of an EMR Serverless application; None where there is none of this name.

        Raises:
            Retriable: EMR Serverless or STS does not answer, or refuses.
        """
        try:
            pages = self.client("emr-serverless", place).get_paginator("list_applications").paginate()
            found = [each for page in pages for each in page["applications"] if each.get("name") == name]
        except (ClientError, BotoCoreError) as exc:
            raise unread(name, place, exc) from exc
        alive = [each for each in found if each["state"] != "TERMINATED"]
        return ApplicationState(id=alive[0]["id"], state=alive[0]["state"], region=place.region) if alive else None


def _session(place: Location) -> Any:
    role = place.iam_arn(f"role/cdk-{QUALIFIER}-lookup-role-{place.account}-{place.region}")
    lent = boto3.client("sts", region_name=place.region).assume_role(RoleArn=role, RoleSessionName="diff-guard")
    return boto3.Session(
        aws_access_key_id=lent["Credentials"]["AccessKeyId"],
        aws_secret_access_key=lent["Credentials"]["SecretAccessKey"],
        aws_session_token=lent["Credentials"]["SessionToken"],
        region_name=place.region,
    )


def unread(what: str, place: Location, exc: Exception) -> Retriable:
    """The error of something that AWS does not show."""
    hint = f"take credentials that may assume the lookup role of `cdk bootstrap` in {place}, as deploy.md says"
    return Retriable(f"what is deployed cannot be read: {exc}", where=f"{what} in {place}", hint=hint)
