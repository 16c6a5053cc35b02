"""How do events reach us undecoded? Lambda's Python runtime parses JSON into dicts first, at seven times the cost.

The runtime client documents a hook for this: the class attribute `BaseLambdaRuntimeClient.marshaller`. A runtime
without it hands over a dict, which the decoder takes as well, only slower.
"""

from __future__ import annotations

from typing import Any


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
