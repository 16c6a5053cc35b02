"""A function's event source mappings, through the Lambda API.

The API takes 15 control calls a second from a whole account, so ours are slower than that, and a call that is one too
many is made again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, ParamValidationError

from mirrorless.clock import Deadline
from mirrorless.errors import Retriable
from mirrorless.flow.rate_limit import RateLimit
from mirrorless.topics.mapping_plan import MappingOutcome, MappingRefused, Request

PAGE: Final = 100
"""The API gives no more mappings at a time."""

_CONFIG = Config(
    connect_timeout=2,
    read_timeout=10,
    retries={"mode": "standard", "total_max_attempts": 3},
    tcp_keepalive=True,
)

_REFUSALS: Final = frozenset({"InvalidParameterValueException", "ValidationException"})
_BUSY: Final = "ResourceInUseException"
_THERE: Final = "ResourceConflictException"
_GONE: Final = "ResourceNotFoundException"


def lambda_client(region: str | None = None) -> Any:
    """A client for the region, by the usual credentials; `AWS_ENDPOINT_URL_LAMBDA` points it at a local one."""
    return boto3.client("lambda", region_name=region or None, config=_CONFIG)


class LambdaMappings:
    """Implements `mirrorless.topics.mapping_plan.Mappings` for one function, or for one alias of it: `name:alias`.

    Without a function's name it lists those of the whole account and region: a mapping outlives its function.
    """

    def __init__(self, client: Any, function_name: str, throttle: RateLimit) -> None:
        self._client = client
        self._function = function_name
        self._throttle = throttle

    def list(self, deadline: Deadline) -> list[Request]:
        """See `Mappings.list`."""
        found: list[Request] = []
        page: Request = {"MaxItems": PAGE, **({"FunctionName": self._function} if self._function else {})}
        while True:
            answer = self._call("list event source mappings", self._client.list_event_source_mappings, page, deadline)
            found += answer["EventSourceMappings"]
            if not answer.get("NextMarker"):
                return found
            page["Marker"] = answer["NextMarker"]

    def create(self, request: Request, deadline: Deadline) -> MappingOutcome:
        """See `Mappings.create`."""
        call = self._client.create_event_source_mapping
        return self._change("create a mapping", call, {"FunctionName": self._function, **request}, deadline)

    def update(self, uuid: str, fields: Request, deadline: Deadline) -> MappingOutcome:
        """See `Mappings.update`."""
        call = self._client.update_event_source_mapping
        return self._change(f"update mapping {uuid}", call, {"UUID": uuid, **fields}, deadline)

    def delete(self, uuid: str, deadline: Deadline) -> MappingOutcome:
        """See `Mappings.delete`."""
        return self._change(
            f"delete mapping {uuid}", self._client.delete_event_source_mapping, {"UUID": uuid}, deadline
        )

    def tags(self, arn: str, deadline: Deadline) -> dict[str, str]:
        """See `Mappings.tags`."""
        what = f"list the tags of {arn}"
        try:
            answer = self._call(what, self._client.list_tags, {"Resource": arn}, deadline)
        except _CodedError as exc:
            if exc.code == _GONE:
                return {}
            raise MappingRefused(f"Lambda refused to {what}: {exc.what}", where=self._function) from exc
        return dict(answer.get("Tags", {}))

    def _change(self, what: str, call: Callable[..., Any], request: Request, deadline: Deadline) -> MappingOutcome:
        try:
            self._call(what, call, request, deadline)
        except _CodedError as exc:
            # Created by an earlier round that did not live to see it, or deleted by another hand: so it should be. But
            # for `create`, where "not found" is the function itself.
            if exc.code == _THERE or (exc.code == _GONE and "UUID" in request):
                return "there"
            if exc.code == _BUSY:
                return "busy"
            raise MappingRefused(
                f"Lambda refused to {what}: {exc.what}",
                where=self._function,
                hint="compare the flow's `mapping` options and the source's authentication with what Lambda says",
            ) from exc
        return "done"

    def _call(self, what: str, call: Callable[..., Any], request: Request, deadline: Deadline) -> Any:
        if deadline() <= 0:
            raise Retriable(f"no time was left to {what}", where=self._function)
        self._throttle.wait()
        try:
            return call(**request)
        except ClientError as exc:
            code = exc.response.get("Error", {}).get("Code", "")
            if code in _REFUSALS | {_BUSY, _THERE, _GONE}:
                raise _CodedError(code, str(exc)) from exc
            hint = "deploy the control stack again: it grants what is needed" if code == "AccessDeniedException" else ""
            raise Retriable(f"Lambda did not {what}: {exc}", where=self._function, hint=hint) from exc
        except ParamValidationError as exc:
            raise _CodedError("ValidationException", str(exc)) from exc
        except BotoCoreError as exc:
            raise Retriable(f"Lambda did not answer to {what}: {exc}", where=self._function) from exc


class _CodedError(Retriable):
    """An answer of the API that one request got, with its code."""

    def __init__(self, code: str, what: str) -> None:
        self.code = code
        super().__init__(what)
