"""What AWS has before a deployment: stacks and applications, and the stacks that have left the configuration.

These are looked for wherever they are, and removed. The CDK's command line
compares each stack of an app with what is deployed, and never looks for more. So a stack that leaves the app stays: the
last flow at a home, the last scheduled topic, a standby, Spark, a part that moved to another region or account. It
would go on replicating. They are looked for in every place that the file names, even for a flow that is disabled, and
that a stack's tags name: a deployment writes all of its places on each of its stacks but the Spark stack.

Where a deployment gets another name, or moves as a whole, none of these names what goes on: its flows would be
replicated twice. So the forwarders of others are compared too, in every region of its accounts.

A stack whose first creation failed, or whose deletion did, can only be deleted. The CDK does so unless it is protected,
which it makes the state stack before its creation begins. So it is done here, for each stack alike. Nothing is lost:
what holds data is retained, and is imported by its name when the stack is made anew. What one of them holds is looked
at all the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import boto3
from botocore.exceptions import BotoCoreError, ClientError, WaiterError

from infra.deployment import PLACES_TAG, Location
from infra.guard.verdict import ApplicationState, ChangeFinding
from mirrorless.errors import Retriable

if TYPE_CHECKING:
    from infra.deployment import Deployment

QUALIFIER: Final = "hnb659fds"
"""Of the roles of `cdk bootstrap`."""

LOOKUP: Final = "lookup"
DEPLOY: Final = "deploy"
EXECUTION: Final = "cfn-exec"
"""The roles of `cdk bootstrap`: that which reads, that which deploys, and CloudFormation's own."""


@dataclass(slots=True)
class Lookups:
    """Reads what is deployed. Each place's role is assumed once, and each client made once."""

    _sessions: dict[tuple[Location, str], Any] = field(default_factory=dict, init=False)
    _clients: dict[tuple[str, Location, str], Any] = field(default_factory=dict, init=False)

    def client(self, service: str, place: Location, *, role: str = LOOKUP) -> Any:
        """A client of a service in a place; raises botocore's errors where its role cannot be assumed."""
        if (service, place, role) not in self._clients:
            if (place, role) not in self._sessions:
                self._sessions[place, role] = _session(place, role)
            session = self._sessions[place, role]
            self._clients[service, place, role] = session.client(service, region_name=place.region)
        return self._clients[service, place, role]

    def stacks(self, place: Location) -> Sequence[DeployedStack]:
        """Every stack in a place, whosesoever; raises Retriable where AWS does not answer, or refuses."""
        with _reading("stacks", place):
            pages = self.client("cloudformation", place).get_paginator("describe_stacks").paginate()
            found = [each for page in pages for each in page["Stacks"]]
        return [
            DeployedStack(
                name=each["StackName"],
                place=place,
                description=each.get("Description", ""),
                tags=tuple((tag["Key"], tag["Value"]) for tag in each.get("Tags", ())),
                protected=each.get("EnableTerminationProtection", False),
                status=each["StackStatus"],
            )
            for each in found
            if each["StackStatus"] != "DELETE_COMPLETE"
        ]

    def regions(self, place: Location) -> Collection[str]:
        """The regions that a place's account is bootstrapped in, by names of roles. Raises Retriable as `stacks`."""
        with _reading("roles", place):
            pages = self.client("iam", place).get_paginator("list_roles").paginate()
            names = [str(each["RoleName"]) for page in pages for each in page["Roles"]]
        beginning = f"cdk-{QUALIFIER}-{LOOKUP}-role-{place.account}-"
        return {name.removeprefix(beginning) for name in names if name.startswith(beginning)}

    def template(self, stack: str, place: Location) -> Mapping[str, Any] | None:
        """The template of a stack; None where there is none. Raises Retriable as `stacks` does."""
        with _reading(stack, place):
            try:
                answer = self.client("cloudformation", place).get_template(StackName=stack)
            except ClientError as exc:
                if exc.response["Error"]["Code"] == "ValidationError" and "does not exist" in str(exc):
                    return None
                raise
        body: Mapping[str, Any] = answer["TemplateBody"]
        return body

    def application(self, name: str, place: Location) -> ApplicationState | None:
        """The state of an EMR Serverless application; None where there is none. Raises Retriable as `stacks` does."""
        with _reading(name, place):
            pages = self.client("emr-serverless", place).get_paginator("list_applications").paginate()
            found = [each for page in pages for each in page["applications"] if each.get("name") == name]
        alive = [each for each in found if each["state"] != "TERMINATED"]
        return ApplicationState(id=alive[0]["id"], state=alive[0]["state"], region=place.region) if alive else None

    def holding(self, stack: DeployedStack) -> list[str]:
        """What of a stack's tables and buckets holds something, or cannot be looked into. Raises as `stacks` does."""
        template = self.template(stack.name, stack.place) or {}
        found = []
        for resource in template.get("Resources", {}).values():
            if count := _COUNTS.get(resource["Type"]):
                property_, service, look = count
                name = resource["Properties"][property_]
                with _reading(name, stack.place):
                    try:
                        found += [name] if look(self.client(service, stack.place), name) else []
                    except ClientError as exc:  # such as a key of the customer's: the lookup role may not decrypt
                        absent = exc.response["Error"]["Code"] in _ABSENT
                        found += [] if absent else [f"{name}, which cannot be looked into: {exc}"]
        return found

    def destroy(self, stack: DeployedStack) -> None:
        """Delete a stack by the deploy role and wait until it is gone; what it retains stays.

        Raises:
            Retriable: it cannot be deleted, or not in time.
        """
        try:
            client = self.client("cloudformation", stack.place, role=DEPLOY)
            if stack.protected:
                client.update_termination_protection(StackName=stack.name, EnableTerminationProtection=False)
            client.delete_stack(StackName=stack.name, RoleARN=_role(stack.place, EXECUTION))
            client.get_waiter("stack_delete_complete").wait(StackName=stack.name)
        except (ClientError, BotoCoreError, WaiterError) as exc:
            hint = f"read the events of the stack in the console of {stack.place}, correct it, and deploy again"
            raise Retriable(f"it was not deleted: {exc}", where=f"stack {stack.name}", hint=hint) from exc


_ABSENT: Final = frozenset({"ResourceNotFoundException", "NoSuchBucket"})
_COUNTS: Final[Mapping[str, tuple[str, str, Callable[[Any, str], object]]]] = {
    "AWS::DynamoDB::GlobalTable": (
        "TableName",
        "dynamodb",
        lambda client, name: client.scan(TableName=name, Limit=1)["Items"],
    ),
    "AWS::S3::Bucket": (
        "BucketName",
        "s3",
        lambda client, name: client.list_object_versions(Bucket=name, MaxKeys=1).get("Versions"),
    ),
}
"""The types of resources that are retained: their names' property, their service, and what finds something in one."""


def _role(place: Location, role: str) -> str:
    return place.iam_arn(f"role/cdk-{QUALIFIER}-{role}-role-{place.account}-{place.region}")


def _session(place: Location, role: str) -> Any:
    sts = boto3.client("sts", region_name=place.region)
    lent = sts.assume_role(RoleArn=_role(place, role), RoleSessionName="mirrorless-deploy")
    return boto3.Session(
        aws_access_key_id=lent["Credentials"]["AccessKeyId"],
        aws_secret_access_key=lent["Credentials"]["SecretAccessKey"],
        aws_session_token=lent["Credentials"]["SessionToken"],
        region_name=place.region,
    )


@contextmanager
def _reading(what: str, place: Location) -> Iterator[None]:
    """Read something that AWS may not show."""
    try:
        yield
    except (ClientError, BotoCoreError) as exc:
        hint = f"take credentials that may assume the lookup role of `cdk bootstrap` in {place}, as deploy.md says"
        why = f"what is deployed cannot be read: {exc}"
        raise Retriable(why, where=f"{what} in {place}", hint=hint) from exc


DESCRIBED: Final = "Mirrorless: "
"""How the description of each of our stacks begins."""

REMOVED_IN_ORDER: Final = (
    ("standby", "control"),  # nothing is found or started any more, and the mappings of found topics go
    ("pull", "monitoring"),
    ("mappings", "replication"),
    ("spark",),
    ("state",),  # its tables and its bucket are retained
)
"""Kinds of stacks: each rests on those behind it."""

_KINDS: Final = "|".join(kind + (r"-\d+" if kind == "mappings" else "") for kinds in REMOVED_IN_ORDER for kind in kinds)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployedStack:
    """A stack as CloudFormation lists it.

    Attributes:
        name: its name in its place.
        place: where it is.
        description: for the console.
        tags: of the stack itself.
        protected: whether it refuses to be deleted.
        status: what CloudFormation says of it.
    """

    name: str
    place: Location
    description: str = ""
    tags: tuple[tuple[str, str], ...] = ()
    protected: bool = False
    status: str = "CREATE_COMPLETE"

    @property
    def was_never_made(self) -> bool:
        """Whether its first creation has not come to its end: it has nothing that a change could hurt."""
        return self.status == "REVIEW_IN_PROGRESS" or self.status.startswith("ROLLBACK_")

    @property
    def has_only_one_way(self) -> bool:
        """Whether it can only be deleted."""
        return self.status in {"ROLLBACK_COMPLETE", "ROLLBACK_FAILED", "DELETE_FAILED"}

    @property
    def places(self) -> frozenset[Location]:
        """The places of its deployment that its tags name."""
        named = " ".join(value for name, value in self.tags if name.startswith(PLACES_TAG)).split()
        return frozenset(Location(*place.split("/", 1)) for place in named if "/" in place)

    @property
    def replicates(self) -> bool:
        """Whether it has forwarders, of whichever deployment."""
        return self.name.endswith(f"-replication-{self.place.region}") and self.description.startswith(DESCRIBED)

    def kind(self, deployment: str) -> str | None:
        """Its kind, without a number; None where it is no stack of this deployment."""
        found = re.fullmatch(f"{re.escape(deployment)}-({_KINDS})-{self.place.region}", self.name)
        if found is None or not self.description.startswith(DESCRIBED):
            return None
        return re.sub(r"-\d+$", "", found[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftStacks:
    """What a look at all places has found.

    Attributes:
        stacks: those that have left, in the order in which they are removed.
        unread: the reason for each place that could not be looked at, and that nothing is deployed to.
        present: those that the app has.
    """

    stacks: tuple[DeployedStack, ...]
    unread: tuple[tuple[Location, str], ...]
    present: tuple[DeployedStack, ...] = ()

    @property
    def to_be_removed(self) -> tuple[DeployedStack, ...]:
        """Those that have left, and those that are to be made anew."""
        return (*self.stacks, *(each for each in self.present if each.has_only_one_way))

    @property
    def never_made(self) -> frozenset[tuple[str, Location]]:
        """The name and the place of each that has nothing to compare with."""
        return frozenset((each.name, each.place) for each in self.present if each.was_never_made)

    def findings(self) -> Iterator[ChangeFinding]:
        """Places that nobody has looked at: one may hold a stack that goes on replicating."""
        for place, why in self.unread:
            yield ChangeFinding(
                refused=True,
                stack=str(place),
                id=str(place),
                subject=f"place {place}",
                what="cannot be looked at, and stacks of this deployment may be left in it",
                why=f"what is left there goes on replicating. {why}",
                instead="take credentials that may assume its lookup role; if nothing was ever deployed there, accept "
                "it by its name",
            )


def left_stacks(deployment: Deployment, present: Collection[tuple[str, Location]], lookups: Lookups) -> LeftStacks:
    """Look for the stacks of a deployment that its app has no longer.

    Args:
        deployment: what the file says now.
        present: the name and the place of each stack of the app.
        lookups: what AWS has.

    Raises:
        Retriable: a place of the deployment cannot be read.
    """
    named = (
        Location(account=cluster.account, region=cluster.region)
        for cluster in deployment.configuration.clusters.values()
        if cluster.account and cluster.region
    )
    waiting = {*deployment.places, *named}
    seen: set[Location] = set()
    left: list[DeployedStack] = []
    there: list[DeployedStack] = []
    unread: list[tuple[Location, str]] = []
    while waiting:
        place = min(waiting)
        seen.add(place)
        try:
            ours = [each for each in lookups.stacks(place) if each.kind(deployment.settings.name)]
        except Retriable as error:
            if place in deployment.places:
                raise
            unread.append((place, str(error)))
            ours = []
        left += [each for each in ours if (each.name, place) not in present]
        there += [each for each in ours if (each.name, place) in present]
        waiting = waiting.union(*(each.places for each in ours)) - seen
    return LeftStacks(
        stacks=tuple(sorted(left, key=lambda each: (_rank(each, deployment.settings.name), each.place, each.name))),
        unread=tuple(unread),
        present=tuple(there),
    )


def halted_findings(
    found: LeftStacks, lookups: Lookups, *, apart: Collection[tuple[str, Location]] = ()
) -> Iterator[ChangeFinding]:
    """What is to be known of stacks that a deployment cannot change as they are.

    Args:
        found: all that are there.
        lookups: what AWS has.
        apart: the name and the place of each that is not to be changed: another deployment may be at work on it.

    Raises:
        Retriable: one is being changed, or stands still half changed.
    """
    for each in found.present:
        if each.has_only_one_way:
            held = lookups.holding(each)
            refused = bool(held) or each.status == "DELETE_FAILED"
            yield ChangeFinding(
                refused=refused,
                stack=each.name,
                id=each.name,
                subject=f"stack {each.name}",
                what=f"is {each.status}: it is deleted, and made anew with the tables and the bucket that it leaves",
                why=f"there is data in {'; '.join(held)}" if held else "these are empty",
                instead="read in its events what failed, then accept it by its name" if refused else "",
            )
        elif (each.name, each.place) in apart:
            continue
        elif each.status != "REVIEW_IN_PROGRESS" and not each.status.endswith("_COMPLETE"):
            working = each.status.endswith("_IN_PROGRESS")
            hint = "wait until that has ended, and deploy again"
            if not working:
                hint = f"correct what its events name, run `cdk rollback {each.name} --app cdk.out`, and deploy again"
            raise Retriable(f"it is {each.status}, and takes no change", where=f"stack {each.name}", hint=hint)


def replications_elsewhere(
    deployment: Deployment, known: Collection[tuple[str, Location]], lookups: Lookups
) -> tuple[dict[str, Mapping[str, Any]], list[ChangeFinding]]:
    """The templates with forwarders that are another deployment's, or of this one in regions that nothing names.

    They are looked for in every region in which an account of the deployment was bootstrapped.

    Args:
        deployment: what the file says now.
        known: the name and the place of each stack that is its own.
        lookups: what AWS has.

    Returns:
        them by their stacks' names and places, and a note of each region that could not be looked at.

    Raises:
        Retriable: a place of the deployment cannot be read.
    """
    accounts = {place.account: place for place in reversed(deployment.places)}
    bootstrapped = (replace(place, region=region) for place in accounts.values() for region in lookups.regions(place))
    found: dict[str, Mapping[str, Any]] = {}
    unread: list[ChangeFinding] = []
    for place in sorted({*deployment.places, *bootstrapped}):
        try:
            others = [each for each in lookups.stacks(place) if each.replicates and (each.name, place) not in known]
            found |= {f"{each.name} in {place}": lookups.template(each.name, place) or {} for each in others}
        except Retriable as error:
            if place in deployment.places:
                raise
            what = "cannot be looked at, and another deployment may have the same flows there"
            subject = f"place {place}"
            unread.append(
                ChangeFinding(
                    refused=False, stack=str(place), id=str(place), subject=subject, what=what, why=str(error)
                )
            )
    return found, unread


def _rank(stack: DeployedStack, deployment: str) -> int:
    kind = stack.kind(deployment)
    return next(rank for rank, kinds in enumerate(REMOVED_IN_ORDER) if kind in kinds)
