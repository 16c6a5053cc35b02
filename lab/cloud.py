"""A whole deployment on one machine: clusters, tables, functions and mappings of a configuration.

    Lab(configuration)  start_servers()  ->  create_topics()  ->  start_flows()  ...  stop()

Servers that die are restarted at their address, as a managed cluster's would be (`lab.servers.process`). Function
environments that die are Lambda's everyday life: the next event starts another.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
from botocore.exceptions import BotoCoreError, ClientError
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from lab.addresses import LabAddresses
from lab.esm.behaviour import LabBehaviour
from lab.esm.lambda_api import LambdaApi
from lab.esm.mapping_api import FunctionName
from lab.esm.mappings import EventSourceMappings
from lab.functions.control import ControlPlane, deployed
from lab.functions.fault_orders import FaultOrders
from lab.functions.function import LambdaFunction
from lab.servers.artifacts import DEFAULT_KAFKA, dynamodb_jars, kafka_jars
from lab.servers.dynamodb import DynamoDbLocal
from lab.servers.kafka import REPLICAS, KafkaCluster
from lab.servers.process import Server
from lab.supervisor import Supervisor
from mirrorless.chain.lane import FlowName
from mirrorless.config.cluster import Cluster
from mirrorless.config.flow import Flow
from mirrorless.config.loading import Configuration
from mirrorless.errors import ConfigurationError, Retriable
from mirrorless.flow.naming import (
    FLOW_VARIABLE,
    FORWARD,
    KEYS_VARIABLE,
    PARTIAL_RESPONSES_VARIABLE,
    PULL,
)
from mirrorless.flow.settings import Tables, decode_settings
from mirrorless.flow.triggers import Trigger
from mirrorless.scheduled.functions import CONTROL, PULL_TIMEOUT_SECONDS, REFRESH_TOPICS, ScheduledFunction
from mirrorless.scheduled.runner import MINUTE

Say = Callable[[str], None]

NOWHERE = "127.0.0.1:1"

KEYS = "keys"
"""The folder of keys among the data."""

KEY_BYTES = 32

PARTITIONS = 6
"""Of a literal topic that the lab creates because nobody else has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowMapping:
    """One event source mapping of one flow."""

    uuid: str
    flow: str
    topic: str
    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LabKeys:
    """The folder of a lab's keys, a file for each, in the place of Secrets Manager and KMS.

    What is in it stays: another lab on the same data opens what this one has sealed.
    """

    folder: Path

    def make(self, name: str, version: int) -> None:
        """Make the versions of a key up to this one that are not there."""
        there = self.material(name)
        made = there | {each: os.urandom(KEY_BYTES) for each in range(1, version + 1) if each not in there}
        text = json.dumps({str(each): base64.b64encode(material).decode() for each, material in made.items()})
        self.folder.mkdir(parents=True, exist_ok=True)
        draft = self.folder / f"{name}.draft"
        draft.write_text(text)
        draft.replace(self.folder / f"{name}.json")

    def material(self, name: str) -> dict[int, bytes]:
        """The versions of a key; none of one that is not there."""
        path = self.folder / f"{name}.json"
        found = json.loads(path.read_text()) if path.exists() else {}
        return {int(version): base64.b64decode(text) for version, text in found.items()}


@dataclass(slots=True, kw_only=True)
class Lab:
    """A configuration, running. Start it in the order of its methods; `stop` from any state."""

    configuration: Configuration
    folder: Path
    kafka_version: str = DEFAULT_KAFKA
    kafka_versions: Mapping[str, str] = field(default_factory=dict)
    """Of clusters that run another version, by alias."""
    brokers: int = 1
    """Of each cluster."""
    behaviour: LabBehaviour = field(default_factory=LabBehaviour)
    zombies: bool = False
    """Whether a timed-out invocation runs on instead of being killed."""
    timeout_seconds: float | None = None
    """Of the functions, where it is not to be the configuration's."""
    control: bool = True
    """Whether the scheduled functions run. A test of the data path alone has more peace without them."""
    control_overrides: Mapping[str, Any] = field(default_factory=dict)
    """Of the scheduled functions' settings, by the names of FlowSettings: shorter intervals, for instance."""
    pull_overrides: Mapping[str, Any] = field(default_factory=dict)
    """Of the settings of scheduled topics' schedules, by the names of PullSettings."""
    schedule_seconds: float = MINUTE
    """Between two starts of a scheduled function, and of a shard that reads continuously."""
    pull_timeout_seconds: float = PULL_TIMEOUT_SECONDS
    """Of the function that reads scheduled topics."""
    pull_minute_seconds: float | None = None
    """How long a minute of that function lasts where faults are injected; None for a minute."""
    inject_faults: bool = False
    """Whether functions carry the layer that obeys `faults`, or `pull_faults`."""
    linked: bool = False
    """Whether clusters stand behind links, and DynamoDB behind a proxy, that faults can use."""
    addresses: LabAddresses = field(default_factory=LabAddresses)
    """Of an earlier lab on the same data."""
    say: Say = print
    clusters: dict[str, KafkaCluster] = field(default_factory=dict)
    functions: dict[str, LambdaFunction] = field(default_factory=dict)
    faults: FaultOrders = field(init=False)
    """Of the forwarders."""
    pull_faults: FaultOrders = field(init=False)
    """Of the functions that read scheduled topics."""
    dynamodb: DynamoDbLocal = field(init=False)
    mappings: EventSourceMappings = field(init=False)
    lambda_api: LambdaApi = field(init=False)
    scheduled: ControlPlane = field(init=False)
    supervisor: Supervisor = field(init=False)
    tables: Tables = field(default_factory=Tables)

    def __post_init__(self) -> None:
        """Refuse what the lab cannot run before anything is started."""
        for flow in self.configuration.enabled_flows:
            if flow.topic_patterns and not self.control:
                raise ConfigurationError(
                    f"without its scheduled functions a lab cannot follow the patterns {list(flow.topic_patterns)}",
                    where=f"flows.{flow.name}.topics",
                    hint="name the topics one by one, or let the functions run",
                )
            if flow.triggers.schedules and not self.control:
                raise ConfigurationError(
                    "without its scheduled functions a lab cannot read scheduled topics",
                    where=f"flows.{flow.name}.trigger",
                    hint="write `trigger: mapping` without overrides, or let the functions run",
                )
        aliases = {alias for flow in self.configuration.enabled_flows for alias in (flow.name.source, flow.name.target)}
        for alias in sorted(aliases):
            known = self.addresses.of_cluster(
                alias, version=self.kafka_version, brokers=self.brokers, linked=self.linked
            )
            self.clusters[alias] = KafkaCluster(
                alias=alias,
                folder=self.folder / alias,
                version=self.kafka_versions.get(alias, self.kafka_version),
                linked=self.linked,
                brokers=self.brokers,
                places=known.places,
                cluster_id=known.cluster_id,
            )
        self.dynamodb = DynamoDbLocal(
            folder=self.folder / "dynamodb", proxied=self.linked, port=self.addresses.of_dynamodb()
        )
        self.faults = FaultOrders(self.folder / "faults")
        self.pull_faults = FaultOrders(
            self.folder / "pull-faults", function=PULL, minute_seconds=self.pull_minute_seconds
        )
        self.supervisor = Supervisor(servers=self.servers, functions=self.functions, say=self.say)
        self.mappings = EventSourceMappings(
            functions=self.functions, folder=self.folder / "mappings", behaviour=self.behaviour
        )
        self.lambda_api = LambdaApi(self.mappings, behaviour=self.behaviour)
        self.scheduled = ControlPlane(
            folder=self.folder,
            origin=self.configuration.origin,
            overrides=self.control_overrides,
            pull_overrides=self.pull_overrides,
            schedule_seconds=self.schedule_seconds,
            pull_timeout_seconds=self.pull_timeout_seconds,
            pull_faults=self.pull_faults if self.inject_faults else None,
            zombies=self.zombies,
        )

    @property
    def keys(self) -> LabKeys:
        """Those that rules mask and encrypt by."""
        return LabKeys(folder=self.folder / KEYS)

    @property
    def servers(self) -> Sequence[Server]:
        """Every server process but the function environments."""
        return [*(broker for cluster in self.clusters.values() for broker in cluster.brokers), self.dynamodb]

    @property
    def flows(self) -> Sequence[Flow]:
        """The enabled flows between the lab's own clusters."""
        return self.configuration.with_clusters_at(
            {alias: self._address(alias) for alias in self.configuration.clusters},
            replication_factor=REPLICAS if self.brokers >= REPLICAS else 1,
        ).enabled_flows

    def beside(self, flow: Flow) -> Flow:
        """A flow by the addresses that no link stands before, for what observes it."""
        addresses = {alias: cluster.direct for alias, cluster in self.clusters.items()}
        others = dict.fromkeys(self.configuration.clusters, NOWHERE)
        flows = self.configuration.with_clusters_at(others | addresses).enabled_flows
        return next(each for each in flows if each.name == flow.name)

    @property
    def flow_mappings(self) -> list[FlowMapping]:
        """The mappings of all flows, as they are now: those that were made here, and those that a function has made."""
        flows = {function_name(flow): flow for flow in self.flows}
        found = []
        for mapping in self.mappings.list():
            flow = flows.get(FunctionName.of(mapping["FunctionArn"]).name)
            group_id = mapping["SelfManagedKafkaEventSourceConfig"]["ConsumerGroupId"]
            topic = mapping["Topics"][0]
            if flow is not None and mapping["State"] != "Deleting" and group_id == flow.group_name(topic):
                found.append(FlowMapping(uuid=mapping["UUID"], flow=str(flow.name), topic=topic, group_id=group_id))
        return found

    def _address(self, alias: str) -> str:
        # A cluster that no enabled flow touches is not started, and its address is of no use.
        return self.clusters[alias].bootstrap if alias in self.clusters else NOWHERE

    def start_servers(self) -> None:
        """Start clusters and DynamoDB side by side, and make the tables.

        Raises:
            MissingTool: Java or Maven is not there.
            ServerFailed: a server does not become ready; its log's end is in the text.
        """
        for version in {cluster.version for cluster in self.clusters.values()}:
            kafka_jars(version)
        dynamodb_jars()
        names = ", ".join(f"{cluster.alias} (Kafka {cluster.version})" for cluster in self.clusters.values())
        self.say(f"starting {names} and DynamoDB Local")
        started: list[KafkaCluster | DynamoDbLocal] = [*self.clusters.values(), self.dynamodb]
        for each in started:
            each.begin_start()
        for each in started:
            each.wait_ready()
        self.dynamodb.create_tables(self.tables)
        self.supervisor.start()

    def create_topics(self, partitions: int = PARTITIONS) -> None:
        """Create the literal topics that their source clusters lack."""
        for flow in self.flows:
            create_topics(addresses(flow.source), [NewTopic(topic, partitions) for topic in flow.literal_topics])

    def start_flows(self) -> None:
        """Deploy each flow's functions, map its literal topics, start the schedules; returns when every mapping polls.

        Topics that a pattern or a heartbeat brings are mapped by the first run of `refresh_topics`, some time later, as
        are those that an entry of `trigger.overrides` is about; scheduled ones are listed by it.
        """
        flows = self.flows
        self.say("starting the functions of " + " and ".join(str(flow.name) for flow in flows))
        for name, key in ((name, key) for flow in flows for name, key in flow.all_settings().keys.items()):
            self.keys.make(name, key.version)
        functions = {function_name(flow): self._function(flow) for flow in flows}
        if self.control:
            self.lambda_api.start()
            endpoints = self._endpoints | {"AWS_ENDPOINT_URL_LAMBDA": self.lambda_api.endpoint}
            functions |= self.scheduled.deploy(flows, variables=endpoints)
        try:
            with ThreadPoolExecutor() as pool:
                list(pool.map(LambdaFunction.initialise, functions.values()))
        finally:
            # Not before: the supervisor would start those that have no environment yet.
            self.functions |= functions
        for mapping in [self.map_topic(flow, topic) for flow in flows for topic in flow.template_topics]:
            self.mappings.wait_enabled(mapping.uuid)
        self.scheduled.start()

    def refresh_topics(self, flow: Flow, topics: Sequence[str]) -> None:
        """Run `refresh_topics` once: by its schedule's input, or without schedules for these topics and no mappings.

        Raises:
            Retriable: a cluster or a store does not answer.
        """
        once = {"refresh_topics_interval_seconds": 0.001, "window_seconds": 0.0}
        others = dict.fromkeys(("sync_topic_configs_enabled", "sync_topic_acls_enabled"), False)
        self._run_once(flow, REFRESH_TOPICS, "topics", topics, once | others)

    def check_lanes(self, flow: Flow, topics: Sequence[str]) -> None:
        """Run the lane check once more than its schedule does; without schedules, of these topics.

        Raises:
            Retriable: a cluster or a store does not answer, or another run of `control` is active.
        """
        report = {"flow": {"S": str(flow.name)}, "key": {"S": "task/lanes"}}
        try:
            self.dynamodb.client().delete_item(TableName=self.tables.control, Key=report)  # so it is due
        except (BotoCoreError, ClientError) as exc:
            raise Retriable(str(exc), where=str(flow.name)) from exc
        alone = dict.fromkeys(("emit_heartbeats_enabled", "emit_checkpoints_enabled"), False) | {"window_seconds": 0.0}
        found = self._run_once(flow, CONTROL, "lanes", topics, alone)
        if any(each.startswith("logs wait") for each in found.get("troubles", ())):
            raise Retriable(f"the lane check waits: {found}", where=str(flow.name))

    def _run_once(
        self, flow: Flow, scheduled: ScheduledFunction, task: str, topics: Sequence[str], changes: dict[str, Any]
    ) -> Mapping[str, Any]:
        """What a task of a scheduled function returns, run with other settings beside its schedule's."""
        name = flow.resource_name(scheduled.name)
        if name not in self.functions:
            self.functions[name] = self.scheduled.function(flow, scheduled, self._endpoints)
        settings = msgspec.to_builtins(flow.all_settings()) | {"topics": list(topics)}
        if self.control:
            settings = json.loads(self.scheduled.timers[name].event)
        outcome = self.functions[name].invoke(json.dumps(settings | changes).encode())
        found: Mapping[str, Any] = json.loads(outcome.payload).get(task, {}) if outcome.status == "success" else {}
        if found.get("error", "no round"):
            raise Retriable(f"{name} failed: {outcome.payload.decode(errors='replace')}", where=str(flow.name))
        return found

    def map_topic(self, flow: Flow, topic: str, **options: Any) -> FlowMapping:
        """Create the mapping of one topic, with the options that the deployment would give it, or others."""
        request = flow.mapping_request(topic) | options
        answer = self.mappings.create(FunctionName=function_name(flow), **request)
        return FlowMapping(uuid=answer["UUID"], flow=str(flow.name), topic=topic, group_id=flow.consumer_group(topic))

    def unmap_topic(self, mapping: FlowMapping) -> None:
        """Delete a mapping; its group's offsets stay."""
        self.mappings.delete(mapping.uuid)

    def change_triggers(self, name: FlowName, overrides: Mapping[str, Trigger], **others: Any) -> None:
        """Give a flow other `trigger.overrides`: first mappings of the template go, then schedules get their new input.

        Args:
            name: the flow's.
            overrides: the entries.
            others: more of the flow's settings, by the names of FlowSection.

        Raises:
            ConfigurationError: a literal topic would be the template's again, which the guard refuses; or the flow has
                scheduled topics now, and the lab was started without their schedules.
        """
        before = self.configuration.flow(name)
        settings = before.settings.model_copy(update={**others, "trigger_overrides": dict(overrides)})
        after = replace(before, settings=settings)
        if anew := sorted({*after.template_topics} - {*before.template_topics}):
            raise ConfigurationError(
                f"{', '.join(anew)} would be mapped by the template again",
                where=f"flows.{name}.trigger.overrides",
                hint="keep an entry of each: `mapping`",
            )
        flow = self._exchange(after)
        gone = {*before.template_topics} - {*after.template_topics}
        for mapping in self.flow_mappings:
            if mapping.flow == str(name) and mapping.topic in gone:
                self.unmap_topic(mapping)
        self.scheduled.change(flow)

    def rotate_key(self, name: FlowName, key: str) -> None:
        """Put the next version of a key into use, as a deployment does: what is under way goes on with the one before.

        The version is in the key's file first.
        """
        before = self.configuration.flow(name)
        changed = before.keys[key].model_copy(update={"version": before.keys[key].version + 1})
        self.keys.make(key, changed.version)
        flow = self._exchange(replace(before, keys={**before.keys, key: changed}))
        if self.control:
            self.scheduled.change(flow)
        forwarder = self.functions[function_name(flow)]
        forwarder.set_variables(self._variables(flow))
        forwarder.recycle()

    def _exchange(self, flow: Flow) -> Flow:
        """Have a flow with other settings in the configuration; the flow between the lab's own clusters."""
        flows = {each: flow if each == flow.name else other for each, other in self.configuration.flows.items()}
        self.configuration = replace(self.configuration, flows=flows)
        return next(each for each in self.flows if each.name == flow.name)

    def stop(self) -> None:
        """Stop everything, in the order in which a deployment is taken down."""
        self.supervisor.stop()
        self.scheduled.stop()
        self.mappings.stop()
        self.lambda_api.stop()
        for function in self.functions.values():
            function.stop()
        for cluster in self.clusters.values():
            cluster.stop()
        self.dynamodb.stop()

    @property
    def _endpoints(self) -> dict[str, str]:
        return {"AWS_ENDPOINT_URL_DYNAMODB": self.dynamodb.endpoint, KEYS_VARIABLE: str(self.keys.folder.absolute())}

    def _variables(self, flow: Flow) -> dict[str, str]:
        """Of its forwarder."""
        variables = {
            FLOW_VARIABLE: flow.function_settings_json(),
            PARTIAL_RESPONSES_VARIABLE: str(flow.partial_responses).lower(),
            **self._endpoints,
        }
        decode_settings(variables[FLOW_VARIABLE])  # what the function would refuse is refused here
        if self.inject_faults:
            variables |= self.faults.variables
        return variables

    def _function(self, flow: Flow) -> LambdaFunction:
        settings = flow.settings
        return deployed(
            flow,
            FORWARD,
            origin=self.configuration.origin,
            faults=self.faults if self.inject_faults else None,
            variables=self._variables(flow),
            timeout_seconds=self.timeout_seconds or settings.function.timeout_seconds,
            memory_mb=settings.function.memory_mb,
            concurrency=settings.function.reserved_concurrency or 100,
            zombies=self.zombies,
            folder=self.folder / "functions",
        )


def function_name(flow: Flow) -> str:
    """What the deployment calls a flow's forwarder."""
    return flow.resource_name(FORWARD)


def addresses(cluster: Cluster) -> str:
    """The bootstrap servers of a flow's cluster, for a client."""
    return ",".join(cluster.bootstrap)


def create_topics(bootstrap: str, topics: Iterable[NewTopic]) -> None:
    """Create topics; one that is there stays as it is."""
    if not (topics := list(topics)):
        return  # the client takes no empty list; a flow may have patterns alone
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for future in admin.create_topics(topics).values():
        try:
            future.result()
        except KafkaException as exc:
            if exc.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
