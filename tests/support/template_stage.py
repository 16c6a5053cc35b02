"""The synthesized templates deployed: their resources, made of the lab's parts.

Nothing here reads replication.yaml: names, keys, variables, code, mappings and schedules are what the templates say,
and each function reaches DynamoDB and Lambda through a gate that holds it to its role (`tests.support.gatekeeper`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infra.guard.templates import Resource
from lab.esm.behaviour import LabBehaviour
from lab.esm.lambda_api import LambdaApi
from lab.esm.mappings import EventSourceMappings
from lab.functions.control import Timer
from lab.functions.function import LambdaFunction
from lab.servers.dynamodb import DynamoDbLocal
from tests.support.assembly import Assembly
from tests.support.gatekeeper import Gate
from tests.support.iam import statements_of

TABLE, FUNCTION, ALIAS = "AWS::DynamoDB::GlobalTable", "AWS::Lambda::Function", "AWS::Lambda::Alias"
MAPPING, SCHEDULE = "AWS::Lambda::EventSourceMapping", "AWS::Scheduler::Schedule"


@dataclass(kw_only=True)
class TemplateStage:
    """An assembly, deployed. `deploy`, then `stop` from any state."""

    assembly: Assembly
    dynamodb: DynamoDbLocal
    folder: Path
    functions: dict[str, LambdaFunction] = field(default_factory=dict)
    code: dict[str, Path] = field(default_factory=dict)
    """The folder that each function runs out of."""
    timers: dict[str, Timer] = field(default_factory=dict)
    gates: dict[str, list[Gate]] = field(default_factory=dict)
    mapped: dict[str, str] = field(default_factory=dict)
    """Topics of the template's own mappings, by UUID."""
    mappings: EventSourceMappings = field(init=False)
    lambda_api: LambdaApi = field(init=False)

    def __post_init__(self) -> None:
        """Make the control plane; nothing runs yet."""
        self.mappings = EventSourceMappings(
            functions=self.functions, folder=self.folder / "mappings", behaviour=LabBehaviour()
        )
        self.lambda_api = LambdaApi(self.mappings)

    def deploy(self) -> None:
        """Make tables, functions, mappings and schedules, in the order in which CloudFormation could."""
        for table in self.assembly.resources(TABLE):
            self.dynamodb.client().create_table(**create_request(table.properties))
        self.lambda_api.start()
        for function in self.assembly.resources(FUNCTION):
            self._deploy_function(function)
        for mapping in self.assembly.resources(MAPPING):
            answer = self.mappings.create(**create_mapping_request(self.resolve(mapping.stack, mapping.properties)))
            self.mapped[answer["UUID"]] = answer["Topics"][0]
        for uuid in self.mapped:
            self.mappings.wait_enabled(uuid)
        for schedule in self.assembly.resources(SCHEDULE):
            self._deploy_schedule(schedule)
        for timer in self.timers.values():
            timer.start()

    def end_schedules(self) -> None:
        """Delete the schedules; runs that are under way go on, as they would."""
        for timer in self.timers.values():
            timer.begin_stop()

    def stop(self) -> None:
        """Stop everything."""
        self.end_schedules()
        self.mappings.stop()
        self.lambda_api.stop()
        for function in self.functions.values():
            function.stop()
        for timer in self.timers.values():
            timer.stop()
        for gate in (gate for gates in self.gates.values() for gate in gates):
            gate.stop()

    @property
    def refused(self) -> dict[str, list[str]]:
        """What roles did not allow, by function."""
        found = {name: [each for gate in gates for each in gate.refused] for name, gates in self.gates.items()}
        return {name: refused for name, refused in found.items() if refused}

    def resolve(self, stack: str, value: Any) -> Any:
        """A value of a template, with what it refers to in its place."""
        match value:
            case {"Ref": str() as id_} | {"Fn::GetAtt": [str() as id_, "Arn"]}:
                return self._reference(stack, id_)
            case {"Fn::Join": [str() as between, parts]}:
                return between.join(self.resolve(stack, parts))
            case {"Fn::Sub": str() as text}:
                return text
            case dict():
                return {key: self.resolve(stack, each) for key, each in value.items()}
            case _:
                return [self.resolve(stack, each) for each in value] if isinstance(value, list) else value

    def _reference(self, stack: str, id_: str) -> str:
        resource = self.assembly.templates[stack].get("Resources", {}).get(id_)
        if resource is None:
            return id_  # a pseudo parameter, or a parameter of the bootstrap
        properties = resource.get("Properties", {})
        match resource["Type"]:
            case "AWS::Lambda::Function":
                return str(properties["FunctionName"])
            case "AWS::Lambda::Alias":
                name = self.resolve(stack, properties["FunctionName"])
                return f"arn:aws:lambda:us-east-1:000000000000:function:{name}:{properties['Name']}"
        return id_

    def _deploy_function(self, resource: Resource) -> None:
        properties = self.resolve(resource.stack, resource.properties)
        name = properties["FunctionName"]
        statements = statements_of(self.assembly, name)
        flow = self.assembly.deployment.flows[0]
        part = properties["Handler"].partition(".")[0]
        dynamodb = Gate(
            part=part,
            statements=statements,
            upstream=self.dynamodb.endpoint,
            arn_prefix=flow.state.arn("dynamodb", "table/"),
        )
        control = Gate(
            part=part,
            statements=statements,
            upstream=self.lambda_api.endpoint,
            arn_prefix=flow.home.arn("lambda", "event-source-mapping:"),
            function_arn=self._function_arn,
        )
        self.gates[name] = [dynamodb, control]
        self.code[name] = self._code(resource.stack, properties["Code"]["S3Key"])
        for gate in self.gates[name]:
            gate.start()
        self.functions[name] = LambdaFunction(
            name=name,
            bundle=self.code[name],
            handler=properties["Handler"],
            variables={
                **properties.get("Environment", {}).get("Variables", {}),
                "AWS_ENDPOINT_URL_DYNAMODB": dynamodb.endpoint,
                "AWS_ENDPOINT_URL_LAMBDA": control.endpoint,
            },
            timeout_seconds=properties["Timeout"],
            memory_mb=properties["MemorySize"],
            folder=self.folder / "functions",
        )

    def _function_arn(self, name: str) -> str:
        """The ARN of a function by its name, or of the function of a mapping, as the deployment's account has it."""
        if name in {mapping["UUID"] for mapping in self.mappings.list()}:
            name = self.mappings.get(name)["FunctionArn"]
        return self.assembly.deployment.flows[0].home.arn("lambda", f"function:{name.rpartition('function:')[2]}")

    def _code(self, stack: str, key: str) -> Path:
        """The folder that is deployed under this key, out of the assembly's own list of assets."""
        assets = json.loads((self.assembly.folder / f"{stack}.assets.json").read_text())["files"]
        return Path(self.assembly.folder, assets[key.removesuffix(".zip")]["source"]["path"]).resolve()

    def _deploy_schedule(self, resource: Resource) -> None:
        properties = self.resolve(resource.stack, resource.properties)
        name = properties["Target"]["Arn"].partition("function:")[2].partition(":")[0]
        self.timers[name] = Timer(
            name=name,
            function=self.functions[name],
            event=json.loads(properties["Target"]["Input"]),
            interval_s=seconds_of(properties["ScheduleExpression"]),
            log=self.folder / "schedule" / f"{name}.jsonl",
        )


def create_request(properties: Mapping[str, Any]) -> dict[str, Any]:
    """The CreateTable that a global table's properties come to, as far as DynamoDB Local has it."""
    kept = ("TableName", "KeySchema", "AttributeDefinitions", "BillingMode")
    return {key: properties[key] for key in kept}


def create_mapping_request(properties: Mapping[str, Any]) -> dict[str, Any]:
    """The CreateEventSourceMapping that a mapping's properties come to."""
    request = {key: value for key, value in properties.items() if key != "Tags"}
    request["FunctionName"] = request["FunctionName"]
    if own := request.get("SelfManagedEventSource"):
        endpoints = {"KAFKA_BOOTSTRAP_SERVERS": own["Endpoints"]["KafkaBootstrapServers"]}
        request["SelfManagedEventSource"] = {"Endpoints": endpoints}
    tags = {tag["Key"]: tag["Value"] for tag in properties.get("Tags", [])}
    return {**request, **({"Tags": tags} if tags else {})}


def seconds_of(expression: str) -> float:
    """The seconds of a `rate(1 minute)`."""
    found = re.fullmatch(r"rate\((\d+) minutes?\)", expression)
    assert found, expression
    return int(found[1]) * 60.0
