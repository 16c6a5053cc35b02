"""Settings of the Lambda runtime's process: how events are fetched, as undecoded bytes, and freed memory that is kept.

Lambda's Python runtime parses JSON into dicts first, at seven times the cost of our decoder. The runtime client
documents a hook for this: the class attribute `BaseLambdaRuntimeClient.marshaller`. A runtime without it hands over a
dict, which the decoder takes as well, only slower.

Its native code collects an event's bytes several times over: 14 ms of CPU for 6 MB, which `http.client` reads in 2.

The same megabytes come with each event, several times over: in the runtime client, as bytes, as records, in the Kafka
client's queue. glibc gives them back to the kernel after each and takes them again, page by page: an eighth of an
event's CPU.
"""

from __future__ import annotations

import ctypes
import http.client
import os
from types import ModuleType
from typing import Any, Final

_MALLOPT: Final = {
    -1: 512 << 20,  # M_TRIM_THRESHOLD: keep what is freed
    -3: 32 << 20,  # M_MMAP_THRESHOLD: also large blocks; the most that glibc takes
    -8: 1,  # M_ARENA_MAX: one heap, whose memory all threads share
}
"""Options of mallopt(3) by their numbers in malloc.h."""


def keep_memory() -> bool:
    """Let the allocator keep the memory of one event for the next. Call it before there are threads.

    Returns:
        whether the allocator is glibc's and took it.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    taken = [mallopt(option, value) for option, value in _MALLOPT.items()]
    return all(taken)


def hand_events_over_undecoded() -> bool:
    """Make the runtime client give the handler an event's bytes.

    Returns:
        whether this runtime has the hook.
    """
    try:
        from awslambdaric.lambda_runtime_client import BaseLambdaRuntimeClient  # noqa: PLC0415 -- Lambda's own
        from awslambdaric.lambda_runtime_marshaller import LambdaMarshaller  # noqa: PLC0415 -- same
    except ImportError:
        return False  # another runtime, or a test that calls the handler itself
    if not hasattr(BaseLambdaRuntimeClient, "marshaller"):
        return False

    class BytesMarshaller(LambdaMarshaller):  # type: ignore[misc]  # the runtime client ships no types
        def unmarshal_request(self, request: bytes, content_type: str = "application/json") -> Any:
            return request if content_type == "application/json" else super().unmarshal_request(request, content_type)

    BaseLambdaRuntimeClient.marshaller = BytesMarshaller()
    return True


NEXT_EVENT: Final = "/2018-06-01/runtime/invocation/next"
"""https://docs.aws.amazon.com/lambda/latest/dg/runtimes-api.html"""
_DEADLINE, _FUNCTION = "Lambda-Runtime-Deadline-Ms", "Lambda-Runtime-Invoked-Function-Arn"
_OTHER_HEADERS: Final = (
    "Lambda-Runtime-Aws-Request-Id",
    "Lambda-Runtime-Trace-Id",
    "Lambda-Runtime-Client-Context",
    "Content-Type",
    "Lambda-Runtime-Cognito-Identity",
    "Lambda-Runtime-Aws-Tenant-Id",
    "Lambda-Runtime-Invocation-Id",
)


class EventFetch:
    """The runtime client's native module, with another `next`; what fails is left to its own."""

    def __init__(self, native: ModuleType, address: str, user_agent: str) -> None:
        self._native = native
        self._connection = http.client.HTTPConnection(address)
        self._request_headers = {"User-Agent": user_agent}

    def __getattr__(self, name: str) -> Any:
        """Everything else, of the native module."""
        return getattr(self._native, name)

    def next(self) -> tuple[bytes, dict[str, Any]]:
        """Wait for an event: its bytes, and its headers as the native module gives them."""
        try:
            self._connection.request("GET", NEXT_EVENT, headers=self._request_headers)
            with self._connection.getresponse() as response:
                body = response.read()
            if response.status == http.client.OK:
                headers: dict[str, Any] = {name: response.headers.get(name) for name in _OTHER_HEADERS}
                headers[_FUNCTION] = response.headers.get(_FUNCTION, "")
                headers[_DEADLINE] = int(response.headers.get(_DEADLINE, 0))
                return body, headers
        except (OSError, http.client.HTTPException):
            self._connection.close()  # the next request opens it again
        event: tuple[bytes, dict[str, Any]] = self._native.next()
        return event


def fetch_events_directly() -> bool:
    """Make the runtime client fetch events by `http.client`.

    Returns:
        whether this runtime has the native module that it replaces.
    """
    address = os.environ.get("AWS_LAMBDA_RUNTIME_API")
    try:
        from awslambdaric import lambda_runtime_client as client  # noqa: PLC0415 -- Lambda's own

        native, user_agent = client.runtime_client, client._user_agent()  # noqa: SLF001 -- as the native module sends it
    except (ImportError, AttributeError):
        return False  # another runtime, or a test that calls the handler itself
    if address is None or not callable(getattr(native, "next", None)):
        return False
    client.runtime_client = EventFetch(native, address, user_agent)
    return True
