"""AWS accounts over HTTP to deploy to: a CloudFormation that keeps the state of stacks, and moto's other services.

It is as strict as CloudFormation where a deployment can go wrong: requests are held to botocore's models, patterns
and all; a name that is taken is refused unless it is imported; what is retained stays when its stack is rolled back or
deleted; a protected stack or table is not deleted; Lambda makes one version of the same code. Tables and buckets are
moto's. All else is a name with its properties (`things`), and nothing of it runs. An operation is over at once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from graphlib import TopologicalSorter
from hashlib import sha256
from itertools import count
from threading import RLock, Thread
from typing import Any, Final

from botocore import xform_name
from moto.core.model import OperationModel, ServiceModel, Shape
from moto.core.parse import QueryParser
from moto.core.serialize import QuerySerializer
from moto.core.utils import get_service_model
from moto.iam.models import get_account_id_from
from moto.moto_api._internal.models import moto_api_backend
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server
from werkzeug.wrappers import Request, Response

from infra.deployed import EXECUTION, QUALIFIER, Lookups
from infra.deployment import Location

NAMES: Final[Mapping[str, str]] = {
    "AWS::CloudWatch::Alarm": "AlarmName",
    "AWS::CloudWatch::CompositeAlarm": "AlarmName",
    "AWS::CloudWatch::Dashboard": "DashboardName",
    "AWS::DynamoDB::GlobalTable": "TableName",
    "AWS::IAM::Role": "RoleName",
    "AWS::Lambda::Function": "FunctionName",
    "AWS::Logs::LogGroup": "LogGroupName",
    "AWS::S3::Bucket": "BucketName",
    "AWS::SNS::Topic": "TopicName",
    "AWS::SSM::Parameter": "Name",
    "AWS::Scheduler::Schedule": "Name",
    "AWS::Scheduler::ScheduleGroup": "Name",
}
"""The property that is the name of a type's resources, by which they are told apart and can be imported."""

VERSION: Final = "AWS::Lambda::Version"
KEEPING: Final = frozenset({"Retain", "RetainExceptOnCreate"})
NEVER_MADE: Final = frozenset({"REVIEW_IN_PROGRESS"})
GONE: Final = "DELETE_COMPLETE"


class Refused(Exception):
    """What CloudFormation refuses, by its code and in its words."""

    def __init__(self, message: str, code: str = "ValidationError") -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(kw_only=True)
class Thing:
    """A resource in an account. `stack`: the id of the stack that has it; None where none has it any more."""

    type: str
    name: str
    place: Location
    properties: Mapping[str, Any]
    stack: str | None


@dataclass(kw_only=True)
class ChangeSet:
    """A template and tags for a stack."""

    id: str
    name: str
    template: str
    tags: list[dict[str, str]]
    imports: bool
    changes: list[dict[str, Any]]


@dataclass(kw_only=True)
class SimulatedStack:
    """A stack: what it was made of, and each thing of it by logical id."""

    id: str
    name: str
    place: Location
    status: str = "REVIEW_IN_PROGRESS"
    template: str = "{}"
    tags: list[dict[str, str]] = field(default_factory=list)
    protected: bool = False
    things: dict[str, Thing] = field(default_factory=dict)
    change_sets: dict[str, ChangeSet] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)

    @property
    def resources(self) -> Mapping[str, Mapping[str, Any]]:
        """Those of its template, by logical id."""
        return _resources(self.template)


@dataclass
class SimulatedAccounts:
    """Every account and region that is asked for.

    Attributes:
        failures: names or logical ids of things whose creation fails; each once, in any order.
        calls: the operations of CloudFormation that were asked for.
        deleted: the names of stacks, as they were deleted.
        wrong: requests that no CloudFormation understands. A test asserts that there are none.
    """

    failures: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    _things: list[Thing] = field(default_factory=list)
    _stacks: list[SimulatedStack] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=count)
    _lock: Any = field(default_factory=RLock)
    _servers: Lookups = field(default_factory=Lookups)
    _model: ServiceModel = field(default_factory=lambda: get_service_model("cloudformation"))
    _moto: DomainDispatcherApplication = field(default_factory=lambda: DomainDispatcherApplication(create_backend_app))

    # For tests

    def things(self, type_: str = "", *, owned: bool = True) -> dict[str, Thing]:
        """What there is of a type, by name. Args: owned: only what a stack has."""
        return {each.name: each for each in self._things if type_ in {"", each.type} and (each.stack or not owned)}

    def stack(self, name: str) -> SimulatedStack | None:
        """The stack of a name that is there."""
        return next((each for each in self._stacks if each.name == name and each.status != GONE), None)

    @property
    def statuses(self) -> dict[str, str]:
        """The status of each stack that is there."""
        return {each.name: each.status for each in self._stacks if each.status != GONE}

    def prepare(self, place: Location) -> None:
        """What `cdk bootstrap` makes in a place."""
        bucket = f"cdk-{QUALIFIER}-assets-{place.account}-{place.region}"
        self._make_bucket(bucket, place)
        self._servers.client("ssm", place).put_parameter(
            Name=f"/cdk-bootstrap/{QUALIFIER}/version", Value="30", Type="String", Overwrite=True
        )

    # Over HTTP

    def __call__(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        """Answer a request, as WSGI."""
        scope = re.search(r"Credential=([^/]+)/\d+/([^/]+)/cloudformation/", environ.get("HTTP_AUTHORIZATION", ""))
        if scope is None:
            answer: Iterable[bytes] = self._moto(environ, start)
            return answer
        place = Location(get_account_id_from(scope[1]), scope[2])
        with self._lock:
            return self._answer(Request(environ), place)(environ, start)

    def _answer(self, request: Request, place: Location) -> Response:
        form = request.form.to_dict()
        action = form.pop("Action", "")
        self.calls.append(action)
        operation = self._model.operation_model(action)
        serializer = QuerySerializer(operation)
        try:
            given = self._understood(operation, form)
            handler: Callable[..., dict[str, Any]] = getattr(self, f"_{xform_name(action)}", self._unknown)
            made = serializer.serialize(handler(place, given))
        except Refused as refusal:
            body = f"<ErrorResponse><Error><Type>Sender</Type><Code>{refusal.code}</Code><Message>{refusal.message}"
            return Response(f"{body}</Message></Error><RequestId>0</RequestId></ErrorResponse>", 400)
        return Response(made["body"], made["status_code"], content_type="text/xml")

    def _understood(self, operation: OperationModel, form: Mapping[str, str]) -> dict[str, Any]:
        members = operation.input_shape.members
        problems = [f"{each} is unknown" for each in form if each.split(".")[0] not in {*members, "Version"}]
        request: Any = {"values": form, "body": "", "headers": {}, "method": "", "url_params": {}, "url_path": ""}
        given: dict[str, Any] = QueryParser(operation).parse(request)
        problems += _broken(operation.input_shape, given, "")
        if problems:
            self.wrong += [f"{operation.name}: {each}" for each in problems]
            raise Refused("; ".join(problems))
        return given

    # The operations

    def _unknown(self, _place: Location, _given: Mapping[str, Any]) -> dict[str, Any]:
        self.wrong.append(f"{self.calls[-1]}: not simulated")
        raise Refused(f"{self.calls[-1]} is not simulated", "InvalidAction")

    def _describe_stacks(self, place: Location, given: Mapping[str, Any]) -> dict[str, Any]:
        wanted = given.get("StackName")
        found = [self._stack(place, wanted)] if wanted else [each for each in self._there(place) if each.status != GONE]
        return {"Stacks": [_described(each) for each in found]}

    def _get_template(self, place: Location, given: Mapping[str, Any]) -> dict[str, Any]:
        return {"TemplateBody": self._stack(place, given["StackName"]).template}

    def _create_change_set(self, place: Location, given: Mapping[str, Any]) -> dict[str, Any]:
        name, kind = given["StackName"], given["ChangeSetType"]
        if given["RoleARN"] != place.iam_arn(f"role/cdk-{QUALIFIER}-{EXECUTION}-role-{place.account}-{place.region}"):
            raise Refused(f"{given['RoleARN']} is not the role of this place", "AccessDenied")
        stack = next((each for each in self._there(place) if each.name == name and each.status != GONE), None)
        if kind == "CREATE" and stack is None:
            stack = SimulatedStack(id=self._id(place, f"stack/{name}"), name=name, place=place)
            self._stacks.append(stack)
        if stack is None:
            raise Refused(f"Stack [{name}] does not exist")
        ready = stack.status in NEVER_MADE if kind == "CREATE" else stack.status in _CHANGEABLE
        if not ready:
            raise Refused(f"Stack:{stack.id} is in {stack.status} state and can not be updated.")
        template = given.get("TemplateBody") or self._fetched(given["TemplateURL"], place)
        change_set = ChangeSet(
            id=self._id(place, f"changeSet/{given['ChangeSetName']}"),
            name=given["ChangeSetName"],
            template=template,
            tags=given.get("Tags", []),
            imports=given.get("ImportExistingResources", False),
            changes=[_change(stack, id_, after) for id_, after in _resources(template).items()],
        )
        change_set.changes = [each for each in change_set.changes if each]
        stack.change_sets[change_set.name] = change_set
        return {"Id": change_set.id, "StackId": stack.id}

    def _describe_change_set(self, place: Location, given: Mapping[str, Any]) -> dict[str, Any]:
        stack, found = self._change_set(place, given)
        changed = bool(found.changes) or stack.template != found.template or stack.tags != found.tags
        return {
            "ChangeSetId": found.id,
            "ChangeSetName": found.name,
            "StackId": stack.id,
            "StackName": stack.name,
            "CreationTime": _now(),
            "Status": "CREATE_COMPLETE" if changed else "FAILED",
            "StatusReason": None if changed else "The submitted information didn't contain changes.",
            "ExecutionStatus": "AVAILABLE" if changed else "UNAVAILABLE",
            "ImportExistingResources": found.imports,
            "Changes": [{"Type": "Resource", "ResourceChange": each} for each in found.changes],
        }

    def _delete_change_set(self, place: Location, given: Mapping[str, Any]) -> dict[str, Any]:
        try:
            stack, found = self._change_set(place, given)
        except Refused:
            return {}  # it is not there, and that is what was asked for
        del stack.change_sets[found.name]
        return {}

    def _execute_change_set(self, place: Location, given: Mapping[str, Any]) -> dict[str, Any]:
        stack, found = self._change_set(place, given)
        del stack.change_sets[found.name]
        self._execute(stack, found)
        return {}

    def _describe_stack_events(self, place: Location, given: Mapping[str, Any]) -> dict[str, Any]:
        return {"StackEvents": self._stack(place, given["StackName"]).events[::-1]}

    def _describe_stack_resources(self, place: Location, given: Mapping[str, Any]) -> dict[str, Any]:
        stack = self._stack(place, given["StackName"])
        return {
            "StackResources": [
                {"LogicalResourceId": id_, "PhysicalResourceId": each.name, "ResourceType": each.type}
                | {"Timestamp": _now(), "ResourceStatus": "CREATE_COMPLETE"}
                for id_, each in stack.things.items()
            ]
        }

    def _describe_events(self, _place: Location, _given: Mapping[str, Any]) -> dict[str, Any]:
        return {"OperationEvents": []}

    def _update_termination_protection(self, place: Location, given: Mapping[str, Any]) -> dict[str, Any]:
        stack = self._stack(place, given["StackName"])
        stack.protected = given["EnableTerminationProtection"]
        return {"StackId": stack.id}

    def _delete_stack(self, place: Location, given: Mapping[str, Any]) -> dict[str, Any]:
        stack = self._stack(place, given["StackName"])
        if stack.protected:
            raise Refused(f"Stack [{stack.name}] cannot be deleted while TerminationProtection is enabled")
        kept = [id_ for id_ in reversed(_ordered(stack.resources)) if not self._drop(stack, id_, new=False)]
        self._enter(stack, "DELETE_FAILED" if kept else GONE)
        self.deleted += [] if kept else [stack.name]
        return {}

    # What they do

    def _there(self, place: Location) -> list[SimulatedStack]:
        return [each for each in self._stacks if each.place == place]

    def _stack(self, place: Location, name: str) -> SimulatedStack:
        for each in self._there(place):
            if each.id == name or (each.name == name and each.status != GONE):
                return each
        raise Refused(f"Stack with id {name} does not exist")

    def _change_set(self, place: Location, given: Mapping[str, Any]) -> tuple[SimulatedStack, ChangeSet]:
        name = given["ChangeSetName"]
        for stack in self._there(place):
            for each in stack.change_sets.values():
                if name == each.id or (name == each.name and given.get("StackName") in {stack.name, stack.id}):
                    return stack, each
        raise Refused(f"ChangeSet [{name}] does not exist", "ChangeSetNotFound")

    def _execute(self, stack: SimulatedStack, change_set: ChangeSet) -> None:
        """Make what is new, change what differs, and remove what is gone; or take it all back."""
        verb = "CREATE" if stack.status in NEVER_MADE else "UPDATE"
        former, stack.template, stack.tags = (stack.template, stack.tags), change_set.template, change_set.tags
        self._enter(stack, f"{verb}_IN_PROGRESS")
        made: list[str] = []
        changed: dict[str, Mapping[str, Any]] = {}
        try:
            for id_ in _ordered(stack.resources):
                if id_ not in stack.things:
                    self._make(stack, id_, imports=change_set.imports)
                    made.append(id_)
                elif (properties := self._properties(stack, id_)) != stack.things[id_].properties:
                    changed[id_] = stack.things[id_].properties
                    stack.things[id_].properties = properties
        except Refused as refusal:
            self._event(stack, id_, stack.resources[id_]["Type"], f"{verb}_FAILED", refusal.message)
            rollback = "ROLLBACK" if verb == "CREATE" else "UPDATE_ROLLBACK"
            self._enter(stack, f"{rollback}_IN_PROGRESS")
            for each, before in changed.items():
                stack.things[each].properties = before
            kept = [each for each in reversed(made) if not self._drop(stack, each, new=True)]
            if verb == "UPDATE":
                stack.template, stack.tags = former
            self._enter(stack, f"{rollback}_FAILED" if kept else f"{rollback}_COMPLETE")
            return
        gone = _resources(former[0]).keys() - stack.resources.keys()
        template, stack.template = stack.template, former[0]
        for id_ in (each for each in reversed(_ordered(stack.resources)) if each in gone):
            self._drop(stack, id_, new=False)
        stack.template = template
        self._enter(stack, f"{verb}_COMPLETE")

    def _make(self, stack: SimulatedStack, id_: str, *, imports: bool) -> None:
        resource, properties = stack.resources[id_], self._properties(stack, id_)
        type_ = resource["Type"]
        name = properties.get(NAMES.get(type_, ""))
        if type_ == VERSION:
            function = self.things("AWS::Lambda::Function")[properties["FunctionName"]]
            digest = sha256(json.dumps(function.properties, sort_keys=True).encode()).hexdigest()[:8]
            name = f"{function.name}:{digest}"
        there = next(
            (each for each in self._things if (each.type, each.name, each.place) == (type_, name, stack.place)), None
        )
        if meant := [each for each in (name, id_) if each in self.failures]:
            self.failures.remove(str(meant[0]))
            raise Refused("it is refused, as the test wants it")
        if there is not None:
            if not imports or there.stack or type_ == VERSION or resource.get("DeletionPolicy") not in KEEPING:
                raise Refused(f"{name} already exists")
            there.stack, there.properties = stack.id, properties
        else:
            name = name or f"{stack.name}-{id_}-{next(self._numbers)}"
            there = Thing(type=type_, name=name, place=stack.place, properties=properties, stack=stack.id)
            if type_ == "AWS::DynamoDB::GlobalTable":
                self._make_table(properties, stack.place)
            elif type_ == "AWS::S3::Bucket":
                self._make_bucket(name, stack.place)
            self._things.append(there)
        stack.things[id_] = there
        self._event(stack, id_, type_, "CREATE_COMPLETE")

    def _drop(self, stack: SimulatedStack, id_: str, *, new: bool) -> bool:
        """Delete what a stack has, or leave it. Args: new: made by what is rolled back. Returns whether it is out."""
        thing, policy = stack.things.get(id_), stack.resources[id_].get("DeletionPolicy", "Delete")
        if thing is None:
            return True
        if policy == "Retain" or (policy == "RetainExceptOnCreate" and not new):
            self._event(stack, id_, thing.type, "DELETE_SKIPPED")
            thing.stack = None
        elif any(each.get("DeletionProtectionEnabled") for each in thing.properties.get("Replicas", ())):
            self._event(stack, id_, thing.type, "DELETE_FAILED", "deletion protection is enabled")
            return False
        else:
            self._event(stack, id_, thing.type, "DELETE_COMPLETE")
            self._things.remove(thing)
        del stack.things[id_]
        return True

    def _properties(self, stack: SimulatedStack, id_: str) -> dict[str, Any]:
        found = self._resolved(stack, stack.resources[id_].get("Properties", {}))
        assert isinstance(found, dict)
        return found

    def _resolved(self, stack: SimulatedStack, value: Any) -> Any:
        """A value without functions of CloudFormation: names of things, and pseudo parameters."""
        pseudo = {
            "AWS::AccountId": stack.place.account,
            "AWS::Region": stack.place.region,
            "AWS::Partition": "aws",
            "AWS::URLSuffix": "amazonaws.com",
        }
        found = value
        match value:
            case {"Ref": name}:
                found = pseudo.get(name) or stack.things[name].name
            case {"Fn::GetAtt": [name, attribute]}:
                found = f"{stack.things[name].name}.{attribute}"
            case {"Fn::Join": [separator, parts]}:
                found = separator.join(str(self._resolved(stack, each)) for each in parts)
            case {"Fn::Sub": str(text)}:
                found = re.sub(r"\$\{([\w:]+)\}", lambda found: self._resolved(stack, {"Ref": found[1]}), text)
            case dict():
                found = {key: self._resolved(stack, each) for key, each in value.items()}
            case list():
                found = [self._resolved(stack, each) for each in value]
        return found

    def _fetched(self, url: str, place: Location) -> str:
        bucket, key = re.sub(r"^https?://(s3[^/]*|127[^/]*)/", "", url).split("/", 1)
        body = self._servers.client("s3", place).get_object(Bucket=bucket, Key=key)["Body"].read()
        return str(body.decode())

    def _make_bucket(self, name: str, place: Location) -> None:
        where = {} if place.region == "us-east-1" else {"LocationConstraint": place.region}
        given: dict[str, Any] = {"CreateBucketConfiguration": where} if where else {}
        self._servers.client("s3", place).create_bucket(Bucket=name, **given)

    def _make_table(self, properties: Mapping[str, Any], place: Location) -> None:
        names = ("TableName", "AttributeDefinitions", "KeySchema", "BillingMode")
        self._servers.client("dynamodb", place).create_table(**{each: properties[each] for each in names})

    def _id(self, place: Location, resource: str) -> str:
        return place.arn("cloudformation", f"{resource}/{next(self._numbers):08d}")

    def _enter(self, stack: SimulatedStack, status: str) -> None:
        stack.status = status
        self._event(stack, stack.name, "AWS::CloudFormation::Stack", status)

    def _event(self, stack: SimulatedStack, id_: str, type_: str, status: str, why: str | None = None) -> None:
        stack.events.append(
            {
                "StackId": stack.id,
                "EventId": str(next(self._numbers)),
                "StackName": stack.name,
                "LogicalResourceId": id_,
                "PhysicalResourceId": stack.id if id_ == stack.name else id_,
                "ResourceType": type_,
                "Timestamp": _now(),
                "ResourceStatus": status,
                "ResourceStatusReason": why,
            }
        )


_CHANGEABLE: Final = frozenset({"CREATE_COMPLETE", "UPDATE_COMPLETE", "UPDATE_ROLLBACK_COMPLETE", "IMPORT_COMPLETE"})


@contextmanager
def serving(accounts: SimulatedAccounts) -> Iterator[str]:
    """Serve them on a free port of this machine. Yields the address, for AWS_ENDPOINT_URL."""
    server = make_server("127.0.0.1", 0, accounts, threaded=True, request_handler=MotoRequestHandler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        moto_api_backend.reset()


def _resources(template: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(template).get("Resources", {})
    return found


def _ordered(resources: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Logical ids, each behind those that it rests on."""
    rests_on = {id_: sorted({*_named(body)} & resources.keys()) for id_, body in resources.items()}
    return list(TopologicalSorter(rests_on).static_order())


def _named(value: Any) -> Iterator[str]:
    match value:
        case {"Ref": str(name)} | {"Fn::GetAtt": [str(name), _]}:
            yield name
        case dict():
            depends = value.get("DependsOn", ())
            yield from [depends] if isinstance(depends, str) else depends
            for each in value.values():
                yield from _named(each)
        case list():
            for each in value:
                yield from _named(each)


def _change(stack: SimulatedStack, id_: str, after: Mapping[str, Any]) -> dict[str, Any]:
    if stack.resources.get(id_) == after:
        return {}
    action = "Modify" if id_ in stack.things else "Add"
    change = {"Action": action, "LogicalResourceId": id_, "ResourceType": after["Type"]}
    return {**change, "Replacement": "False", "Scope": ["Properties"]} if action == "Modify" else change


def _described(stack: SimulatedStack) -> dict[str, Any]:
    return {
        "StackId": stack.id,
        "StackName": stack.name,
        "Description": json.loads(stack.template).get("Description"),
        "CreationTime": _now(),
        "StackStatus": stack.status,
        "EnableTerminationProtection": stack.protected,
        "Tags": stack.tags,
        "Outputs": [],
        "Parameters": [
            {"ParameterKey": name, "ParameterValue": each["Default"]}
            for name, each in json.loads(stack.template).get("Parameters", {}).items()
        ],
    }


def _broken(shape: Shape, value: Any, path: str) -> list[str]:
    """What of a value the model does not allow."""
    rules = shape.metadata
    problems = []
    if shape.type_name == "structure":
        problems += [f"{path}.{each} is missing" for each in rules.get("required", ()) if each not in value]
        for name, each in value.items():
            problems += _broken(shape.members[name], each, f"{path}.{name}")
    elif shape.type_name == "list":
        for each in value:
            problems += _broken(shape.member, each, path)
    length = len(value) if isinstance(value, str | list) else value
    if isinstance(length, int) and not rules.get("min", length) <= length <= rules.get("max", length):
        problems.append(f"{path} is {length}, beside {rules.get('min')} to {rules.get('max')}")
    if isinstance(value, str) and "pattern" in rules and not re.fullmatch(rules["pattern"], value):
        problems.append(f"{path} is {value}, which {rules['pattern']} does not have")
    if isinstance(value, str) and rules.get("enum") and value not in rules["enum"]:
        problems.append(f"{path} is {value}, which is none of {rules['enum']}")
    return problems


def _now() -> datetime:
    return datetime.now(UTC)
