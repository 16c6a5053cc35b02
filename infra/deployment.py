"""The stacks that a configuration needs, and their regions and accounts: plain values, checked before any CDK.

state        with the target: the flow's tables; a bucket for each place that has tables or jobs
replication  at the flow's home: the forwarder and the mappings of literal topics
mappings     at the flow's home: mappings of literal topics that `mapping.stacks` takes out of the replication stack
pull         with the target, or where the flow says: the function that reads scheduled topics
control      at the flow's home: the scheduled functions, and the removal of found topics' mappings
standby      with the target, where that is another region than the home: the function `control` once more
spark        with the target, or with the source where records are masked: the application that jobs run on
monitoring   at the flow's home: dashboard and alarms
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING

import msgspec

from mirrorless.config.cluster import partition_of, secrets_of
from mirrorless.config.problems import InvalidConfiguration, Problem
from mirrorless.flow.naming import (
    CONTROL_CALLS_VARIABLE,
    DEPLOYMENT,
    FORWARD,
    NAMESPACE_VARIABLE,
    PULL,
    STANDBY,
    flow_id,
)
from mirrorless.flow.settings import CALLS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from mirrorless.config import Configuration
    from mirrorless.config.cluster import Cluster
    from mirrorless.config.flow import Flow
    from mirrorless.config.schema import DeploymentSection
    from mirrorless.flow.settings import FlowSettings, PullSettings

ALIAS = "live"
"""The alias of each function, which all callers call."""

PLACES_TAG = "mirrorless:places"
"""The tag of a stack that names every place of its deployment; further tags `…-2` where one has no room."""

LONGEST_TAG = 256
"""Characters of a tag's value at most."""


@dataclass(frozen=True, slots=True, order=True)
class Location:
    """One region of one account: what a stack is deployed to."""

    account: str
    region: str

    @property
    def partition(self) -> str:
        """The partition of its ARNs."""
        return partition_of(self.region)

    def arn(self, service: str, resource: str) -> str:
        """The ARN of something here."""
        return f"arn:{self.partition}:{service}:{self.region}:{self.account}:{resource}"

    def iam_arn(self, resource: str) -> str:
        """The ARN of something in IAM of this account, such as `role/name`: it belongs to no region."""
        return f"arn:{self.partition}:iam::{self.account}:{resource}"

    def bucket_name(self, settings: DeploymentSection) -> str:
        """The bucket of a deployment for what jobs write here: reports and archives.

        S3 keeps the names that end so for their account.
        (https://docs.aws.amazon.com/AmazonS3/latest/userguide/gpbucketnamespaces.html)
        """
        ending = "-an" if settings.bucket_namespace == "account-regional" else ""
        return f"{settings.name}-{self.account}-{self.region}{ending}"

    def __str__(self) -> str:
        return f"{self.account}/{self.region}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowDeployment:
    """One enabled flow, and where its parts go.

    Attributes:
        replica_region: where a copy of its tables is kept to read from; None where none is.
        tables_key: ARN of the customer's key that encrypts the tables at home; None where it is AWS's own.
        replica_key: the same for their copy.
        counterpart: where the tables of the flow in the other direction live, whose offset map its groups need too;
            None where they do not.
        counterpart_key: the key of those.
        control_calls_per_second: its share of the control calls of Lambda that the deployment makes at its home.
        bucket_name: the bucket for what its jobs write.
    """

    flow: Flow
    replica_region: str | None
    tables_key: str | None = None
    replica_key: str | None = None
    counterpart: Location | None = None
    counterpart_key: str | None = None
    control_calls_per_second: float = CALLS_PER_SECOND
    bucket_name: str = ""

    @property
    def name(self) -> str:
        """`source->target`."""
        return str(self.flow.name)

    @property
    def id(self) -> str:
        """The id of its constructs: `us-east_eu-west`."""
        return flow_id(self.flow.name)

    @property
    def home(self) -> Location:
        """Where its functions and mappings live, but for `pull`."""
        return _place(self.flow.home)

    @property
    def pull(self) -> Location | None:
        """Where its function `pull` lives; None where it has none."""
        return _place(self.flow.pull_home) if self.flow.has_pull else None

    @property
    def state(self) -> Location:
        """Where its tables live: with the target."""
        return _place(self.flow.target)

    @property
    def jobs(self) -> Location:
        """Where its jobs run, and their files are."""
        return _place(self.flow.jobs_home)

    def with_prefixes(self, prefixes: tuple[str, ...]) -> FlowDeployment:
        """The same with `topics.rights.prefixes`."""
        settings = self.flow.settings.model_copy(update={"topics_rights_prefixes": prefixes})
        return replace(self, flow=replace(self.flow, settings=settings))

    def table_arns(self) -> dict[str, str]:
        """The ARN of each table, by what it holds."""
        return {table: self.state.arn("dynamodb", f"table/{name}") for table, name in self.flow.tables.items()}

    @property
    def counterpart_arn(self) -> str | None:
        """The ARN of the counterpart's offset map."""
        table = self.flow.counterpart_map
        return None if self.counterpart is None else self.counterpart.arn("dynamodb", f"table/{table}")

    def has(self, part: str) -> bool:
        """Whether the flow has this part."""
        if part == STANDBY:
            return self.flow.standby is not None
        return part != PULL or self.pull is not None

    def end_of(self, part: str) -> Cluster:
        """The cluster beside which a part runs."""
        ends = {"jobs": self.flow.jobs_home, STANDBY: self.flow.target, PULL: self.flow.pull_home}
        return ends.get(part, self.flow.home)

    def place_of(self, part: str) -> Location:
        """Where a part runs.

        Raises:
            ValueError: the flow does not have it.
        """
        if part == PULL and self.pull is None:
            raise ValueError(f"{self.name} has no scheduled topics")
        return _place(self.end_of(part))

    def tables_role_of(self, part: str) -> str | None:
        """The role by which a part reaches tables in another account; None where they are in its own."""
        roles = {"jobs": self.flow.jobs_tables_role, STANDBY: None, PULL: self.flow.pull_tables_role}
        return roles.get(part, self.flow.tables_role)

    def function_arn(self, part: str) -> str:
        """The ARN of one of its functions, without a version."""
        return self.place_of(part).arn("lambda", f"function:{self.flow.resource_name(part)}")

    @property
    def metrics_variables(self) -> dict[str, str]:
        """What functions and jobs need to emit metrics under the deployment's own name."""
        if self.flow.deployment == DEPLOYMENT:
            return {}
        return {NAMESPACE_VARIABLE: self.flow.metrics_namespace}

    @property
    def control_calls_variables(self) -> dict[str, str]:
        """What the function that removes mappings needs to keep to the flow's share of control calls."""
        calls = self.control_calls_per_second
        return {} if calls == CALLS_PER_SECOND else {CONTROL_CALLS_VARIABLE: f"{calls:g}"}

    def schedule_input(self) -> FlowSettings:
        """The input of its scheduled functions' schedules."""
        function = f"{self.flow.resource_name(FORWARD)}:{ALIAS}"
        settings = self.flow.control_settings(function, secret_arn=self.secret_arn)
        return msgspec.structs.replace(settings, control_calls_per_second=self.control_calls_per_second)

    def longest_input(self) -> int:
        """The bytes of the longest input of its schedules."""
        inputs: list[FlowSettings | PullSettings] = [self.schedule_input()]
        if self.has(PULL):
            inputs.append(self.flow.pull_settings(self.flow.settings.schedule.shards - 1))
        if self.has(STANDBY):
            inputs.append(self.flow.standby_settings())
        return max(len(compact(each).encode()) for each in inputs)

    def role_path(self, part: str) -> str:
        """The IAM path of the role that a part runs as: `/mirrorless/us-east_eu-west/forward/`.

        Another account can trust a path before the role exists. A name would do so too, but names are unique in a whole
        account: a flow that moves to another region would collide with itself.
        """
        return f"/{self.flow.deployment}/{self.id}/{part}/"

    def secret_arn(self, secret: str, *, at: Location | None = None) -> str:
        """The ARN by which a secret is read: at home, where functions and pollers are, or at another place.

        A name gives an ARN without the six letters that Secrets Manager adds; it accepts both.
        """
        return secret if secret.startswith("arn:") else (at or self.home).arn("secretsmanager", f"secret:{secret}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """Everything that a configuration deploys."""

    configuration: Configuration
    settings: DeploymentSection
    flows: tuple[FlowDeployment, ...]

    @property
    def homes(self) -> tuple[Location, ...]:
        """Where functions live, but for those that read scheduled topics."""
        return tuple(sorted({flow.home for flow in self.flows}))

    @property
    def pulls(self) -> tuple[Location, ...]:
        """Where functions live that read scheduled topics."""
        return tuple(sorted({flow.pull for flow in self.flows if flow.pull is not None}))

    @property
    def states(self) -> tuple[Location, ...]:
        """Where tables live, or the files of jobs."""
        return tuple(sorted({flow.state for flow in self.flows} | set(self.jobs)))

    @property
    def jobs(self) -> tuple[Location, ...]:
        """Where jobs run."""
        return tuple(sorted({flow.jobs for flow in self.flows})) if self.settings.spark.enabled else ()

    @property
    def standbys(self) -> tuple[Location, ...]:
        """Where functions stand by."""
        return tuple(sorted({flow.state for flow in self.flows if flow.has(STANDBY)}))

    @property
    def places(self) -> tuple[Location, ...]:
        """Where anything lives."""
        return tuple(sorted({*self.homes, *self.pulls, *self.states}))

    @property
    def place_tags(self) -> dict[str, str]:
        """The tags of stacks that name all places, by which a later deployment finds what has left it."""
        values = [""]
        for place in map(str, self.places):
            if len(values[-1]) + 1 + len(place) > LONGEST_TAG:
                values.append("")
            values[-1] = f"{values[-1]} {place}".strip()
        return {PLACES_TAG + (f"-{number}" if number > 1 else ""): value for number, value in enumerate(values, 1)}

    def flows_at(self, part: str, place: Location) -> tuple[FlowDeployment, ...]:
        """The flows of which a part runs there: `forward` at home, `standby` where the tables are."""
        return tuple(flow for flow in self.flows if flow.has(part) and flow.place_of(part) == place)

    def topics_of_stack(self, flow: FlowDeployment, stack: int) -> tuple[str, ...]:
        """The topics of a flow that the template of one stack maps. Args: stack: 0 is the replication stack.

        It follows from the name alone, so that topics stay where they are while others come and go. Where the number of
        stacks is doubled, half of each stack's topics go to a stack that did not exist, and is deployed after it.
        """
        stacks = self.settings.mapping_stacks
        return tuple(topic for topic in flow.flow.template_topics if _number(flow, topic) % stacks == stack)

    def with_mapping_stacks(self, stacks: int) -> Deployment:
        """The same with another `mapping.stacks`."""
        return replace(self, settings=self.settings.model_copy(update={"mapping_stacks": stacks}))

    def kms_key(self, place: Location, *, region: str | None = None) -> str | None:
        """The customer's key of a place, or of another region of its account; None where AWS's own is used."""
        return _key(self.settings, place.account, region or place.region)

    def stack_name(self, kind: str, place: Location) -> str:
        """The name of a stack, `mirrorless-state-eu-west-1`: a name is unique in its region of its account."""
        return f"{self.settings.name}-{kind}-{place.region}"

    def artifact_id(self, kind: str, place: Location) -> str:
        """What a stack is called among all others: its name, and its account if that is not the first flow's home.

        It stays as it is when another account joins.
        """
        suffix = "" if place.account == self.flows[0].home.account else f"-{place.account}"
        return f"{self.stack_name(kind, place)}{suffix}"


def plan(configuration: Configuration) -> Deployment:
    """The plan of a configuration.

    Raises:
        InvalidConfiguration: something that a deployment needs, and the lab does not, is missing.
    """
    if problems := list(dict.fromkeys(deployment_problems(configuration))):
        raise InvalidConfiguration(configuration.origin, problems)
    settings = configuration.deployment
    flows = []
    for flow in configuration.enabled_flows:
        state = _place(flow.target)
        copied = settings.offset_map_replicas_enabled and flow.source.account == state.account
        elsewhere = flow.source.region if copied and flow.source.region != state.region else None
        flows.append(
            FlowDeployment(
                flow=flow,
                replica_region=elsewhere,
                tables_key=_key(settings, state.account, state.region),
                replica_key=_key(settings, state.account, elsewhere) if elsewhere else None,
                counterpart=_place(flow.source) if flow.counterpart_map else None,
                counterpart_key=_key(settings, str(flow.source.account), str(flow.source.region)),
                bucket_name=_place(flow.jobs_home).bucket_name(settings),
            )
        )
    homes = Counter(flow.home for flow in flows)
    calls = settings.control_calls_per_second
    flows = [replace(flow, control_calls_per_second=round(calls / homes[flow.home], 3)) for flow in flows]
    if problems := list(dict.fromkeys(_half_encrypted(flows))):
        raise InvalidConfiguration(configuration.origin, problems)
    return Deployment(configuration=configuration, settings=settings, flows=tuple(flows))


def compact(given: FlowSettings | PullSettings) -> str:
    """The input of a schedule as JSON."""
    return msgspec.json.encode(given).decode()


def _number(flow: FlowDeployment, topic: str) -> int:
    return int.from_bytes(sha256(f"{flow.id}/{topic}".encode()).digest()[:8])


def _place(cluster: Cluster) -> Location:
    return Location(account=str(cluster.account), region=str(cluster.region))


def _key(settings: DeploymentSection, account: str, region: str) -> str | None:
    return next((arn for arn in settings.kms_key_arns if arn.split(":")[3:5] == [region, account]), None)


def _half_encrypted(flows: Iterable[FlowDeployment]) -> Iterator[Problem]:
    """The flows of which a table would have a customer's key and its copy none, or the other way round.

    A template has one kind of key for a table and its copies.
    https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/aws-resource-dynamodb-globaltable.html
    """
    for flow in flows:
        if flow.replica_region is None or bool(flow.tables_key) == bool(flow.replica_key):
            continue
        regions = (flow.state.region, flow.replica_region)
        having, lacking = regions if flow.tables_key else regions[::-1]
        yield Problem(
            path=("deployment", "kms.key.arns"),
            what=f"{flow.name} keeps its tables in two regions, and there is a key for {having} only",
            hint=f"add a key of {lacking} in account {flow.state.account}, or write "
            "`offset.map.replicas.enabled: false`",
        )


LONGEST_NAME = 64
"""Characters of the name of a function, a schedule or a role at most, by Lambda, EventBridge Scheduler and IAM."""

LONGEST_PART = "remove_mappings"
"""The longest of the parts that a resource is named by."""

_PATH = ("deployment", "alarms", "topic.arns")
_SECTIONS = 6


def deployment_problems(configuration: Configuration) -> Iterator[Problem]:
    """What is missing or wrong, in the order of the document."""
    for flow in configuration.enabled_flows:
        for end in (flow.home, flow.target, *([flow.pull_home] if flow.has_pull else [])):
            path = ("clusters", end.alias)
            if end.region is None:
                what = f"{flow.name} is deployed in its region, and none is written"
                yield Problem(path=(*path, "region"), what=what, hint="add `region: us-east-1`, or whichever it is")
            if end.account is None:
                what = f"{flow.name} is deployed in its account, and none is written"
                yield Problem(path=(*path, "account"), what=what, hint='add `account: "111122223333"`, yours')
        if (length := len(flow.resource_name(LONGEST_PART))) > LONGEST_NAME:
            what = f"a function would have a name of {length} characters, and Lambda takes {LONGEST_NAME}"
            yield Problem(path=("flows", str(flow.name)), what=what, hint="shorten the cluster aliases")
        yield from _standby_problems(flow)
        if flow.settings.start == "backfill":
            yield from _jobs_problems(flow, spark_enabled=configuration.deployment.spark.enabled)
        for end in filter(None, (flow.home, flow.pull_home if flow.has_pull else None, flow.standby)):
            if (network := end.vpc) and network.endpoints and network.id is None:
                what = "endpoints are made in a VPC, and its id is not written"
                yield Problem(path=("clusters", end.alias, "vpc", "id"), what=what, hint="add `id: vpc-…`")
        yield from _poller_problems(flow)
    yield from _key_problems(configuration)
    yield from _paging_problems(configuration)


def _poller_problems(flow: Flow) -> Iterator[Problem]:
    """Why pollers on demand would not reach the endpoints that are made for them.

    They carry the cluster's own security groups, and are in its subnets.
    (https://docs.aws.amazon.com/lambda/latest/dg/with-msk-cluster-network.html)
    """
    home = flow.home
    if flow.polled_on_demand and home.vpc and home.vpc.endpoints and not home.msk_groups:
        yield Problem(
            path=("clusters", home.alias, "msk.security.groups"),
            what=f"the pollers of {flow.name} carry the cluster's own security groups, which the endpoints must let in",
            hint="add `msk.security.groups: [sg-…]`, as `aws kafka describe-cluster-v2` lists them",
        )


def _key_problems(configuration: Configuration) -> Iterator[Problem]:
    """Keys that encrypt nothing, of a place where no cluster is: what they were meant for has AWS's own."""
    places = {(each.region, each.account) for each in configuration.clusters.values()}
    for position, arn in enumerate(configuration.deployment.kms_key_arns):
        region, account = arn.split(":")[3:5]
        if (region, account) not in places and None not in {part for place in places for part in place}:
            yield Problem(
                path=("deployment", "kms.key.arns", position),
                what=f"no cluster is in {region} of account {account}, and nothing would be encrypted with this key",
                hint="name a key in the region and account of a cluster, or remove this one",
            )


def _standby_problems(flow: Flow) -> Iterator[Problem]:
    """Why a flow's standby could not work without the home's region."""
    if flow.standby is None:
        return
    for secret in secrets_of(flow.target.authentication):
        if secret.startswith("arn:") and secret.split(":")[3] != flow.target.region:
            yield Problem(
                path=("clusters", flow.target.alias, "authentication", "secret"),
                what=f"{secret} is lost with its region, and {flow.name} goes on in {flow.target.region} without it",
                hint="write the secret's name, and make it in both regions; or write in the flow "
                "`function: {standby.enabled: false}`",
            )


def _jobs_problems(flow: Flow, *, spark_enabled: bool) -> Iterator[Problem]:
    """Why no job could ever release the lanes of a flow that begins with one."""
    if not spark_enabled:
        what = f"{flow.name} begins with a Spark job, and there are to be none"
        yield Problem(path=("deployment", "spark", "enabled"), what=what, hint="write `start: earliest`, or enable it")
    elif flow.jobs_home.vpc is None:
        what = f"{flow.name} begins with a Spark job, which reaches no broker without a network"
        hint = "add `vpc`: the network in the cluster's region that its brokers are reached from"
        yield Problem(path=("clusters", flow.jobs_home.alias, "vpc"), what=what, hint=hint)


def _paging_problems(configuration: Configuration) -> Iterator[Problem]:
    """What is wrong with the topics that are named, before anything is created."""
    if not configuration.enabled_flows:
        return  # the last one is taken down, and nothing notifies anyone
    alarms = configuration.deployment.alarms
    homes = {flow.home.region: flow for flow in configuration.enabled_flows}
    homes |= {flow.pull_home.region: flow for flow in configuration.enabled_flows if flow.has_pull} | homes
    homes |= {flow.standby.region: flow for flow in configuration.enabled_flows if flow.standby} | homes
    if configuration.deployment.spark.enabled:
        homes |= {flow.jobs_home.region: flow for flow in configuration.enabled_flows} | homes
    reached = set()
    for position, arn in enumerate(alarms.topic_arns):
        sections = arn.split(":")
        if len(sections) != _SECTIONS or sections[2] != "sns":
            yield Problem(
                path=(*_PATH, position),
                what=f"{arn} is not the ARN of an SNS topic",
                hint="write it as arn:aws:sns:us-east-1:111122223333:on-call",
            )
        elif sections[3] not in homes:
            there = ", ".join(sorted(filter(None, homes)))
            yield Problem(
                path=(*_PATH, position),
                what=f"nothing runs in {sections[3]}, and an alarm notifies topics of its own region only",
                hint=f"name a topic in {there}, or remove this one",
            )
        else:
            reached.add(sections[3])
    if not alarms.topic_arns or alarms.email:
        return
    for region, flow in homes.items():
        if region is not None and region not in reached:
            yield Problem(
                path=_PATH,
                what=f"no topic is in {region}, where {flow.name} or its jobs run: alarms there would notify no topic",
                hint=f"add a topic of {region}, or an `email`",
            )
