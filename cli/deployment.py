"""The deployment that a command is about, the stores of its flows, and the state file of a running lab.

It is a running lab, described by its state file (`--lab STATE`), or AWS with the usual credentials, described by
replication.yaml (`--config FILE`). Slow imports are in the functions that need them: `translate` in a lab needs neither
YAML nor pydantic.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from cli.args import CONFIG, BadInput
from cli.output import say
from mirrorless.chain.lane import FlowName, Lane
from mirrorless.errors import ConfigurationError, MirrorlessError
from mirrorless.flow.naming import KEYS_VARIABLE
from mirrorless.flow.settings import Tables
from mirrorless.flow.triggers import MAPPING, SCHEDULE, Trigger

if TYPE_CHECKING:
    from mirrorless.adapters.dynamodb.chains import DynamoDbChains
    from mirrorless.adapters.dynamodb.lane_states import DynamoDbLaneOrders
    from mirrorless.adapters.dynamodb.loss_ledger import DynamoDbLossLedger
    from mirrorless.adapters.dynamodb.state_store import DynamoDbDocuments
    from mirrorless.config import Configuration, Flow
    from mirrorless.flow.settings import FlowSettings
    from mirrorless.ports.stores import Chains, StateStore


LAB_REGION = "us-east-1"
"""Any: in the lab, all regions see the same tables."""

NO_CLUSTER = "127.0.0.1:1"
"""The address of a cluster that the lab does not run, because no enabled flow needs it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stores:
    """The tables of one flow, in its target's region."""

    client: Any
    tables: Tables
    chains: DynamoDbChains
    states: DynamoDbLaneOrders
    ledger: DynamoDbLossLedger
    documents: DynamoDbDocuments
    """The state of the scheduled functions."""
    checkpoints: DynamoDbDocuments
    """The positions of consumer groups on the other side."""


class DeployedFlows:
    """The flows of a deployment."""

    def __init__(self, *, config: Path, lab: LabState | None = None) -> None:
        """Args: config: replication.yaml. lab: the content of a lab's state file; None means AWS."""
        self._config = config
        self._lab = lab

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> DeployedFlows:
        """The deployment that `--lab` and `--config` point at.

        Raises:
            BadInput: the state file cannot be read, or is not a lab's.
        """
        if arguments.lab is None:
            return cls(config=Path(arguments.config or CONFIG))
        state = read_lab_state(Path(arguments.lab))
        return cls(config=Path(state.config), lab=state)

    @cached_property
    def configuration(self) -> Configuration:
        """replication.yaml; in a lab, with the lab's addresses of the clusters.

        Raises:
            ConfigurationError: it cannot be read, or is not valid.
        """
        from mirrorless.config import load  # noqa: PLC0415 -- pydantic and YAML cost a third of a second

        configuration = load(self._config)
        if self._lab is None:
            return configuration
        clusters = self._lab.clusters
        return configuration.with_clusters_at(
            {alias: clusters[alias].bootstrap if alias in clusters else NO_CLUSTER for alias in configuration.clusters},
            replication_factor=self._lab.replication_factor,
        )

    def flow_name(self, text: str) -> FlowName:
        """Read a flow's name, and check that this deployment has the flow.

        Raises:
            BadInput: it is not a flow's name.
            ConfigurationError: there is no such flow.
        """
        try:
            name = FlowName.parse(text)
        except ValueError as exc:
            raise BadInput(str(exc), where="FLOW", hint="quote it: the shell takes > for itself") from exc
        # The state file names most flows. The configuration is read only for the others.
        if not any(mapping.flow == text for mapping in self._mappings):
            self.configuration.flow(name)
        return name

    def flow_names(self, text: str | None) -> list[FlowName]:
        """One flow, where it is named; otherwise every enabled one."""
        return [self.flow_name(text)] if text else [flow.name for flow in self.configuration.enabled_flows]

    def lane(self, flow: str, topic: str, partition: int) -> Lane:
        """The lane that three arguments name. Raises like `flow_name`."""
        return Lane(self.flow_name(flow), topic, partition)

    def flow(self, name: FlowName) -> Flow:
        """A flow's section of the configuration."""
        return self.configuration.flow(name)

    def settings(self, name: FlowName) -> FlowSettings:
        """The settings of the flow's functions, but for what makes mappings."""
        return self.flow(name).all_settings()

    def looking(self, name: FlowName) -> FlowSettings:
        """The same for reads of clusters, with what proves who only reads."""
        from msgspec.structs import replace  # noqa: PLC0415 -- same

        flow = self.flow(name)
        settings = self.settings(name)
        return replace(settings, source=flow.source.settings(looking=True), target=flow.target.settings(looking=True))

    @property
    def is_lab(self) -> bool:
        """Whether this is a lab, and not AWS."""
        return self._lab is not None

    def job_settings(self, name: FlowName) -> FlowSettings:
        """The settings of a job that runs with credentials of the tables' account, and needs no role to reach them."""
        from msgspec.structs import replace  # noqa: PLC0415 -- same

        flow = self.flow(name)
        settings = flow.function_settings()
        tables = settings.tables if self._lab is None else self._lab.tables
        return replace(settings, tables=tables, tables_role=None, copying=flow.settings.copying)

    def job_variables(self) -> dict[str, str]:
        """Environment variables of a job on this machine, beside the command's own.

        They are the way to functions of the operator's own, which lie beside the configuration; of a lab its tables and
        its keys.
        """
        rules = [rule for flow in self.configuration.flows.values() for rule in flow.rules]
        paths = [str(self.configuration.folder), *filter(None, [os.environ.get("PYTHONPATH")])]
        own = {"PYTHONPATH": os.pathsep.join(paths)} if any(rule.function for rule in rules) else {}
        if self._lab is None:
            return own
        return own | {
            "AWS_ENDPOINT_URL_DYNAMODB": self._lab.dynamodb.endpoint,
            KEYS_VARIABLE: self._lab.keys,
            "AWS_ACCESS_KEY_ID": "lab",
            "AWS_SECRET_ACCESS_KEY": "lab",
            "AWS_SESSION_TOKEN": "lab",
            "AWS_REGION": LAB_REGION,
            "AWS_DEFAULT_REGION": LAB_REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "NO_PROXY": "127.0.0.1,localhost",
            "no_proxy": "127.0.0.1,localhost",
        }

    def mapping(self, name: FlowName, topic: str) -> LabMapping | None:
        """The event source mapping of a topic in the lab's state file; None where there is none, and on AWS."""
        for mapping in self._mappings:
            if mapping.flow == str(name) and mapping.topic == topic:
                return mapping
        return None

    def mapping_group(self, lane: Lane) -> str | None:
        """The consumer group of the mapping that reads a lane; None where a schedule does.

        Raises:
            Retriable: the store does not answer.
        """
        trigger = triggers_of(self.settings(lane.flow), self.stores(lane.flow).documents)
        return None if trigger(lane.topic).now == SCHEDULE else self.flow(lane.flow).group_name(lane.topic)

    def mapped_topics(self, name: FlowName) -> list[str]:
        """The topics of a flow that have a mapping in the lab."""
        return [mapping.topic for mapping in self._mappings if mapping.flow == str(name)]

    def stores(self, name: FlowName) -> Stores:
        """The flow's stores.

        Raises:
            ConfigurationError: there is no region, or the credentials are of another account than the tables.
        """
        from mirrorless.adapters.dynamodb.chains import DynamoDbChains  # noqa: PLC0415 -- boto3 costs half a second
        from mirrorless.adapters.dynamodb.lane_states import DynamoDbLaneOrders  # noqa: PLC0415 -- same
        from mirrorless.adapters.dynamodb.loss_ledger import DynamoDbLossLedger  # noqa: PLC0415 -- same
        from mirrorless.adapters.dynamodb.state_store import DynamoDbDocuments  # noqa: PLC0415 -- same

        retention_days = 30
        if self._lab is not None:
            tables = self._lab.tables
            client = _lab_client(self._lab.dynamodb.endpoint)
        else:
            settings = self.settings(name)
            if settings.tables_role:
                require_account(str(self.flow(name).target.account), name, settings.target.region)
            client, tables = _aws_client(settings.target.region, name), settings.tables
            retention_days = settings.offset_map_retention_days
        return Stores(
            client=client,
            tables=tables,
            chains=DynamoDbChains(client, tables.offset_map, retention_days=retention_days),
            states=DynamoDbLaneOrders(client, tables.lanes),
            ledger=DynamoDbLossLedger(client, tables.loss_ledger),
            documents=DynamoDbDocuments(client, tables.control),
            checkpoints=DynamoDbDocuments(client, tables.checkpoints),
        )

    def counterpart_chains(self, name: FlowName) -> Chains | None:
        """The offset map of the flow in the other direction, where both keep the names of topics; None for others.

        It is in the source's region, which may be lost: then no read of it answers.

        Raises:
            ConfigurationError: there is no region.
        """
        from mirrorless.adapters.dynamodb.chains import DynamoDbChains  # noqa: PLC0415 -- boto3 costs half a second

        flow = self.flow(name)
        if flow.counterpart_map is None:
            return None
        if self._lab is not None:
            return DynamoDbChains(_lab_client(self._lab.dynamodb.endpoint), self._lab.tables.offset_map)
        return DynamoDbChains(_aws_client(flow.source.region, name), flow.counterpart_map)

    @property
    def _mappings(self) -> list[LabMapping]:
        return self._lab.mappings if self._lab is not None else []


@dataclass(frozen=True, slots=True)
class TopicTrigger:
    """The trigger of one topic."""

    configured: Trigger
    now: Trigger
    """`schedule` while the topic is read by a schedule, also while it changes back."""

    @property
    def changing(self) -> bool:
        """Whether `refresh_topics` is still changing it."""
        return self.now != self.configured

    def __str__(self) -> str:
        return f"{self.now} -> {self.configured}" if self.changing else self.configured


TriggerOf = Callable[[str], TopicTrigger]
"""By topic."""


def triggers_of(settings: FlowSettings, documents: StateStore) -> TriggerOf:
    """The triggers of one flow's topics, with what is scheduled now.

    Raises:
        Retriable: the store does not answer.
    """
    from mirrorless.topics.scheduled_topics import read_scheduled_topics  # noqa: PLC0415 -- most commands need no triggers

    scheduled = read_scheduled_topics(documents, settings.name).keys()
    return lambda topic: TopicTrigger(settings.triggers.of(topic), SCHEDULE if topic in scheduled else MAPPING)


def require_account(account: str, name: FlowName, region: str | None) -> None:
    """Check that the usual credentials are of the account that keeps a flow's tables.

    Where the tables are in another account than the functions, a role reaches them that only the functions may assume.
    An operator needs credentials of the tables' account, which then identifies the operator and grants the rights. The
    region of the tables is asked, and no other: the operator's own may be the one that is lost.

    Raises:
        ConfigurationError: they are of another account, or there are none.
    """
    import boto3  # noqa: PLC0415 -- costs half a second
    import botocore.session  # noqa: PLC0415 -- same
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 -- same

    hint = f"use a profile of account {account}: AWS_PROFILE=…"
    try:
        # STS needs no permission. A profile may still prefer its global endpoint, which is in us-east-1.
        session = botocore.session.get_session()
        session.set_config_variable("sts_regional_endpoints", "regional")
        identity = boto3.Session(botocore_session=session).client("sts", region_name=region).get_caller_identity()
    except (BotoCoreError, ClientError) as exc:
        raise ConfigurationError(
            f"the account of these credentials is not known: {exc}", where=str(name), hint=hint
        ) from exc
    if identity["Account"] != account:
        what = f"its tables are in account {account}, and these credentials are of {identity['Account']}"
        raise ConfigurationError(what, where=str(name), hint=hint)


def _aws_client(region: str | None, name: FlowName) -> Any:
    from botocore.exceptions import BotoCoreError  # noqa: PLC0415 -- same

    from mirrorless.adapters.dynamodb.client import dynamodb_client  # noqa: PLC0415 -- same

    try:
        return dynamodb_client(region)
    except BotoCoreError as exc:
        raise ConfigurationError(
            f"its tables cannot be reached: {exc}",
            where=str(name),
            hint=f"write clusters.{name.target}.region, and check the profile and the credentials",
        ) from exc


def _lab_client(endpoint: str) -> Any:
    """A client that uses neither the operator's AWS profile nor a proxy."""
    import botocore.session  # noqa: PLC0415 -- same
    from botocore.config import Config  # noqa: PLC0415 -- same

    not_looked_up = (None, None, None, None)
    session = botocore.session.Session({"profile": not_looked_up, "config_file": not_looked_up})
    return session.create_client(
        "dynamodb",
        endpoint_url=endpoint,
        region_name=LAB_REGION,
        aws_access_key_id="lab",
        aws_secret_access_key="lab",  # noqa: S106 -- DynamoDB Local requires credentials and does not check them
        config=Config(connect_timeout=2, read_timeout=5, retries={"total_max_attempts": 3}, proxies={}),
    )


REPLICAS = 3
"""In a lab with as many brokers in each cluster."""

VARIABLE = "MIRRORLESS_LAB"
"""The environment variable that names a lab's state file."""

HERE = Path(".lab") / "state.json"
"""Where `make lab` keeps it."""


class LabNotRunning(MirrorlessError):
    """The lab has ended, or was killed."""


class LabNotReady(LabNotRunning):
    """The lab is starting, or ending: records do not flow at this moment."""

    retriable = True


class LabBroker(msgspec.Struct, frozen=True):
    """A broker that the lab runs."""

    id: int


class LabCluster(msgspec.Struct, frozen=True):
    """A cluster that the lab runs."""

    bootstrap: str
    brokers: tuple[LabBroker, ...] = ()


class LabDynamoDb(msgspec.Struct, frozen=True):
    """The lab's DynamoDB."""

    endpoint: str


class LabMapping(msgspec.Struct, frozen=True):
    """One event source mapping."""

    flow: str
    topic: str
    uuid: str = ""
    group_id: str = ""
    state: str = ""
    """As the Lambda API has it: `Enabled`, `Disabled`, …."""
    last_processing_result: str = ""


class LabState(msgspec.Struct, frozen=True):
    """The state file."""

    config: str
    clusters: dict[str, LabCluster]
    dynamodb: LabDynamoDb
    tables: Tables
    keys: str = ""
    """The folder of the keys of rules."""
    mappings: list[LabMapping] = []
    ready: bool = True
    pid: int | None = 0
    """Of the lab itself; null once it has ended."""

    @property
    def runs(self) -> bool:
        """Whether the lab's process is there; taken for granted where the file does not name it."""
        return self.pid == 0 or (self.pid is not None and _exists(self.pid))

    @property
    def replication_factor(self) -> int:
        """Of the topics of its flows; a topic with one replica takes no records where two have to be in sync."""
        brokers = min((len(cluster.brokers) for cluster in self.clusters.values()), default=1)
        return REPLICAS if brokers >= REPLICAS else 1


def read_lab_state(path: Path) -> LabState:
    """Read the file.

    Raises:
        BadInput: it is not there, or is not a lab's state.
        LabNotRunning: the lab has ended.
        LabNotReady: it is starting, or ending.
    """
    try:
        state = msgspec.json.decode(path.read_bytes(), type=LabState)
    except (OSError, UnicodeDecodeError, msgspec.DecodeError) as exc:
        raise BadInput(
            f"the lab's state file cannot be read: {exc}",
            where=str(path),
            hint="name the state file of a running lab, as `python -m lab up --state FILE` writes it",
        ) from exc
    if not state.runs:
        raise LabNotRunning(
            "the lab is not running", where=str(path), hint="`make lab` starts it again, with the data that it had"
        )
    if not state.ready:
        raise LabNotReady("the lab is starting, or ending", where=str(path), hint="wait until it says: records flow")
    return state


def choose_lab(arguments: argparse.Namespace) -> None:
    """Set `--lab` where it is left out: to MIRRORLESS_LAB, or to a lab that runs here. `--config` means AWS."""
    if getattr(arguments, "lab", "") is not None or arguments.config is not None:
        return
    arguments.lab = os.environ.get(VARIABLE) or None
    if arguments.lab is None and HERE.exists():
        try:
            read_lab_state(HERE)
        except (BadInput, LabNotRunning):
            return
        arguments.lab = str(HERE)
        if sys.stderr.isatty():
            say(f"mirrorless: this is the lab of {HERE}; --config FILE means AWS", err=True)


def without_credentials(error: MirrorlessError) -> MirrorlessError:
    """The error to report of a command about AWS: that there are no credentials, where this is why a call failed."""
    cause: BaseException | None = error
    while cause is not None and type(cause).__name__ != "NoCredentialsError":  # by name: botocore is slow to import
        cause = cause.__cause__
    if cause is None:
        return error
    if HERE.exists():
        hint = "`make lab` starts it again, with the data that it had; for AWS, set AWS_PROFILE"
        return LabNotRunning(
            "the lab is not running, and there are no credentials for AWS either", where=str(HERE), hint=hint
        )
    hint = "set AWS_PROFILE, or what else gives credentials; or start a lab here: `make lab`"
    return ConfigurationError("there are no credentials for AWS", where=error.where, hint=hint)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # another user's
    try:
        # Dead, and not reaped by its parent yet.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return not Path("/proc/self/stat").exists()  # a system that has no such files
