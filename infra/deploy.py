"""The deployment of a configuration: synthesis, the guard against what is deployed, then the CDK's command line.

    python -m infra.deploy replication.yaml                    all stacks
    python -m infra.deploy replication.yaml --stacks 'mirrorless-state-*' --accept LOGICAL_ID

What is deployed is read from CloudFormation, by the lookup role that `cdk bootstrap` made. What the guard refuses is
not deployed. Exit codes: 1 refused, or nothing was synthesized; else the CDK's own.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from infra import cdk
from infra.deployment import Location
from infra.guard.change_rules import findings
from infra.guard.diff_guard import report, templates_of
from infra.guard.templates import watched
from infra.guard.verdict import accepted
from infra.synth import REPOSITORY, SynthesizedStack, stacks_in, synth
from mirrorless.errors import MirrorlessError, Retriable

Read = Callable[[str, Location], Mapping[str, Any] | None]
"""The template of a stack in a place; None where there is no such stack."""

QUALIFIER: Final = "hnb659fds"
"""Of the roles of `cdk bootstrap`."""


def deployed(stack: str, place: Location) -> Mapping[str, Any] | None:
    """The template of a stack as CloudFormation has it; None where there is no such stack.

    Raises:
        Retriable: CloudFormation or STS does not answer, or refuses.
    """
    role = place.iam_arn(f"role/cdk-{QUALIFIER}-lookup-role-{place.account}-{place.region}")
    try:
        lent = boto3.client("sts", region_name=place.region).assume_role(RoleArn=role, RoleSessionName="diff-guard")
        session = boto3.Session(
            aws_access_key_id=lent["Credentials"]["AccessKeyId"],
            aws_secret_access_key=lent["Credentials"]["SecretAccessKey"],
            aws_session_token=lent["Credentials"]["SessionToken"],
            region_name=place.region,
        )
        template: Mapping[str, Any] = session.client("cloudformation").get_template(StackName=stack)["TemplateBody"]
    except ClientError as exc:
        if exc.response["Error"]["Code"] == "ValidationError" and "does not exist" in str(exc):
            return None
        raise _unread(stack, place, exc) from exc
    except BotoCoreError as exc:
        raise _unread(stack, place, exc) from exc
    return template


def _unread(stack: str, place: Location, exc: Exception) -> Retriable:
    hint = f"take credentials that may assume the lookup role of `cdk bootstrap` in {place}, as deploy.md says"
    return Retriable(f"the deployed template cannot be read: {exc}", where=f"{stack} in {place}", hint=hint)


def may_deploy(out: Path, stacks: Iterable[SynthesizedStack], accept: Collection[str], read: Read = deployed) -> bool:
    """Compare a folder with what is deployed, print what changes, and say whether nothing of it is refused.

    Args:
        out: the folder.
        stacks: those in it.
        accept: logical ids of refusals that are meant.
        read: reads what is deployed.

    Raises:
        Retriable: it cannot be read.
    """
    old = {each.id: body for each in stacks if (body := read(each.name, each.place)) is not None}
    if not old:
        print("nothing is deployed yet")
        return True
    found = accepted(findings(old, templates_of(out)), accept)
    touched = {(each.stack, each.id) for each in found}
    print(report(found, unchanged=len(watched(old).keys() - touched)), flush=True)
    return not any(each.refused for each in found)


def main() -> int:
    """Synthesize, compare, and deploy what nothing is refused of."""
    parser = argparse.ArgumentParser(prog="python -m infra.deploy", description=__doc__.splitlines()[0])
    parser.add_argument("config", type=Path, help="replication.yaml")
    parser.add_argument("--stacks", nargs="*", default=[], metavar="PATTERN", help="some of the stacks; left out, all")
    parser.add_argument("--accept", nargs="*", default=[], metavar="LOGICAL_ID", help="a refusal that is meant")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "cdk.out", help="folder to write to")
    given = parser.parse_args()
    try:
        cdk.install()
        deployment = synth(given.config, given.out)
        allowed = may_deploy(given.out, stacks_in(given.out, deployment), given.accept)
    except MirrorlessError as error:
        print(f"deploy: {error}", file=sys.stderr)
        return 1
    if not allowed:
        print("deploy: nothing was deployed; the guard refuses what is named above", file=sys.stderr)
        return 1
    argv = cdk.argv("deploy", *(given.stacks or ["--all"]), "--app", str(given.out.resolve()))
    return subprocess.run(argv, cwd=REPOSITORY, env=cdk.environment(), check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
