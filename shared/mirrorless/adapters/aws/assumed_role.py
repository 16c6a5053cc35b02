"""Credentials of a role in another account, renewed before they expire.

A role that is assumed by a role lasts one hour at most, and an environment lives longer, or lies frozen meanwhile.
botocore renews credentials that have less than a quarter of an hour left; if it cannot, it goes on with them until ten
minutes before their end.
https://docs.aws.amazon.com/IAM/latest/UserGuide/id_roles.html#iam-term-role-chaining
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from typing import Any, Final

import boto3
import botocore.session
from botocore.config import Config
from botocore.credentials import CredentialResolver, DeferredRefreshableCredentials
from botocore.exceptions import BotoCoreError, ClientError, ParamValidationError

from mirrorless.errors import ConfigurationError, Retriable

_CONFIG = Config(connect_timeout=2, read_timeout=5, retries={"mode": "standard", "total_max_attempts": 4})

_USELESS: Final = frozenset({"ValidationError", "RegionDisabledException"})
"""Answers that stay what they are: the ARN is none, or STS is switched off in the function's region."""


def now() -> datetime:
    """The time, as botocore compares it."""
    return datetime.now(UTC)


@cache
def sts_client() -> Any:
    """STS of the function's own region, the one that its network has a way to, as the function itself."""
    return boto3.client("sts", config=_CONFIG)


@cache
def session_as(role_arn: str, *, clock: Callable[[], datetime] = now) -> boto3.Session:
    """A session that acts as a role, for as long as the process lives. All callers share its credentials.

    The role is assumed by the first call of a client, which may raise:
        Retriable: STS did not give the credentials.
        ConfigurationError: it never will.
    """
    session = botocore.session.Session()
    credentials = DeferredRefreshableCredentials(
        refresh_using=partial(assume, role_arn), method=_Provider.METHOD, time_fetcher=clock
    )
    session.register_component("credential_provider", CredentialResolver([_Provider(credentials)]))
    return boto3.Session(botocore_session=session)


def assume(role_arn: str, *, sts: Callable[[], Any] = sts_client) -> dict[str, str]:
    """Fresh credentials, under the names that botocore gives them.

    They do not say the account: knowing it, botocore would call DynamoDB by a name of that account's, which no VPC
    endpoint of the function's network answers to.

    Raises:
        Retriable: STS refused, or did not answer.
        ConfigurationError: STS will refuse for ever.
    """
    # The function's name in CloudTrail of the tables' account.
    name = os.environ.get("AWS_LAMBDA_FUNCTION_NAME", "mirrorless")
    try:
        given = sts().assume_role(RoleArn=role_arn, RoleSessionName=name)["Credentials"]
    except ClientError as exc:
        what = f"STS refused the role that reaches the flow's tables: {exc}"
        if exc.response.get("Error", {}).get("Code") in _USELESS:
            hint = "deploy again from replication.yaml, and see that STS is active in the function's region"
            raise ConfigurationError(what, where=role_arn, hint=hint) from exc
        hint = "deploy the state stack of the tables' account, and after it the stacks of the functions"
        raise Retriable(what, where=role_arn, hint=hint) from exc
    except ParamValidationError as exc:
        hint = "deploy again from replication.yaml"
        raise ConfigurationError(f"this is no role: {exc}", where=role_arn, hint=hint) from exc
    except BotoCoreError as exc:
        what = f"STS did not give the role that reaches the flow's tables: {exc}"
        hint = "see that the function's network has a way to STS of its own region"
        raise Retriable(what, where=role_arn, hint=hint) from exc
    return {
        "access_key": given["AccessKeyId"],
        "secret_key": given["SecretAccessKey"],
        "token": given["SessionToken"],
        "expiry_time": given["Expiration"].isoformat(),
    }


@dataclass(frozen=True, slots=True)
class _Provider:
    """botocore's provider of these credentials."""

    credentials: DeferredRefreshableCredentials
    METHOD = "mirrorless-assumed-role"

    def load(self) -> DeferredRefreshableCredentials:
        """The same ones each time; they renew themselves."""
        return self.credentials
