"""The response of a custom resource, put to the URL in CloudFormation's request.

(https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/crpg-ref-responses.html)
"""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable, Mapping
from http.client import HTTPException
from typing import Any, Final
from urllib.error import HTTPError

from mirrorless.errors import Retriable

LONGEST_REASON: Final = 1_000
"""Characters; the whole answer has 4,096 bytes."""

TRIES: Final = 5
_TIMEOUT_SECONDS: Final = 5.0
_PAUSE_SECONDS: Final = 1.0


def answer(
    request: Mapping[str, Any],
    *,
    physical_id: str,
    failure: str = "",
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Answer a custom resource's request.

    Args:
        request: as CloudFormation sent it.
        physical_id: of a resource that is created. Later answers repeat what the request says: by another id
            CloudFormation would take the resource for replaced, and delete the old one.
        failure: why it failed; empty for success.
        sleep: between two tries.

    Raises:
        Retriable: the address takes no answer. Lambda then runs the function once more.
    """
    body = {
        "Status": "FAILED" if failure else "SUCCESS",
        "Reason": failure[:LONGEST_REASON],
        "PhysicalResourceId": request.get("PhysicalResourceId") or physical_id,
        **{name: request[name] for name in ("StackId", "RequestId", "LogicalResourceId")},
    }
    # The address is signed for a request without a content type, and urllib adds one of its own where none is given.
    put = urllib.request.Request(  # noqa: S310 -- CloudFormation's own address, as it came with the request
        request["ResponseURL"], data=json.dumps(body).encode(), method="PUT", headers={"Content-Type": ""}
    )
    for number in range(TRIES):
        try:
            with urllib.request.urlopen(put, timeout=_TIMEOUT_SECONDS):  # noqa: S310 -- same
                return
        except (OSError, HTTPException) as exc:
            last = str(exc)
            if isinstance(exc, HTTPError):
                exc.close()
        sleep(_PAUSE_SECONDS * 2**number)
    raise Retriable(f"CloudFormation's address takes no answer: {last}", where=str(body["LogicalResourceId"]))
