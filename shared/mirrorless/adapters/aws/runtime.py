"""Settings of the Lambda runtime's process: events as undecoded bytes, and freed memory that is kept.

Lambda's Python runtime parses JSON into dicts first, at seven times the cost of our decoder. The runtime client
documents a hook for this: the class attribute `BaseLambdaRuntimeClient.marshaller`. A runtime without it hands over a
dict, which the decoder takes as well, only slower.

The same megabytes come with each event, several times over: in the runtime client, as bytes, as records, in the Kafka
client's queue. glibc gives them back to the kernel after each and takes them again, page by page: an eighth of an
event's CPU.
"""

from __future__ import annotations

import ctypes
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
