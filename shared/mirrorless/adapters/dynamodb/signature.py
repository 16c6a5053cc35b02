"""AWS Signature Version 4 of a DynamoDB call: the head of its request, one POST to `/` whose body is signed.

botocore's signer wants request objects and maps of headers that it builds and takes apart again, a third of a call's
CPU; what it signs is the same (tests/unit/adapters/test_dynamodb_direct.py).
(https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html)
"""

from __future__ import annotations

import hmac
import time
from functools import lru_cache
from hashlib import sha256
from typing import Final

_ALGORITHM: Final = "AWS4-HMAC-SHA256"
_CONTENT_TYPE: Final = "application/x-amz-json-1.0"


def signed_head(
    body: bytes, *, target: str, host: str, region: str, agent: str, access_key: str, secret_key: str, token: str | None
) -> bytes:
    """The request's line and headers, as they are sent before the body.

    Args:
        body: the call as JSON.
        target: version and operation, such as `DynamoDB_20120810.PutItem`.
        host: of the endpoint, with its port where that is not the scheme's own.
        region: of the endpoint.
        agent: the user agent, which is not signed.
        access_key: of the credentials.
        secret_key: likewise.
        token: likewise; only those of a session have one.
    """
    now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    signed = {"content-type": _CONTENT_TYPE, "host": host, "x-amz-date": now}  # in the order of their names
    if token:
        signed["x-amz-security-token"] = token
    signed["x-amz-target"] = target
    names = ";".join(signed)
    canonical = "\n".join(["POST", "/", "", *map(":".join, signed.items()), "", names, sha256(body).hexdigest()])
    scope = f"{now[:8]}/{region}/dynamodb/aws4_request"
    to_sign = f"{_ALGORITHM}\n{now}\n{scope}\n{sha256(canonical.encode()).hexdigest()}"
    signature = hmac.digest(_signing_key(secret_key, now[:8], region), to_sign.encode(), "sha256").hex()
    headers = signed | {
        "authorization": f"{_ALGORITHM} Credential={access_key}/{scope}, SignedHeaders={names}, Signature={signature}",
        "content-length": str(len(body)),
        "user-agent": agent,
    }
    return "\r\n".join(["POST / HTTP/1.1", *map(": ".join, headers.items()), "", ""]).encode("latin-1")


@lru_cache(maxsize=4)
def _signing_key(secret_key: str, day: str, region: str) -> bytes:
    key = f"AWS4{secret_key}".encode()
    for scope in (day, region, "dynamodb", "aws4_request"):
        key = hmac.digest(key, scope.encode(), "sha256")
    return key
