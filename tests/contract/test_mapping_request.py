"""The requests to Lambda are valid: held against the API's own model, as the AWS SDK carries it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lab.esm.api_model import violations
from mirrorless.config import load

EXAMPLE = Path(__file__).parents[2] / "replication.example.yaml"

AUTHENTICATIONS = {
    "plaintext": "{type: plaintext}",
    "tls": "{type: tls, ca: root}",
    "plain": "{type: plain, secret: kafka}",
    "oauthbearer": "{type: oauthbearer, secret: kafka, scope: api://kafka all, logical.cluster: lkc, identity.pool: p}",
    "scram": "{type: scram, secret: kafka, ca: root}",
    "mtls": "{type: mtls, secret: kafka}",
    "iam": "{type: iam}",
}


def complaints(request: dict[str, Any]) -> list[str]:
    return violations("CreateEventSourceMapping", {"FunctionName": "forward", **request})


def test_the_examples_mappings_are_what_the_api_takes() -> None:
    for flow in load(EXAMPLE).enabled_flows:
        for topic in flow.template_topics:
            assert complaints(flow.mapping_request(topic)) == []


@pytest.mark.parametrize("authentication", AUTHENTICATIONS.values(), ids=AUTHENTICATIONS)
@pytest.mark.parametrize("mode", ["provisioned", "on-demand"])
def test_every_authentication_and_mode_is_requested_in_the_apis_words(authentication: str, mode: str) -> None:
    configuration = load(f"""
clusters:
  a:
    bootstrap.servers: a1:9098
    region: us-east-1
    authentication: {authentication}
    vpc: {{subnets: [subnet-1], security.groups: [sg-1]}}
  b: {{bootstrap.servers: b1:9092, vpc: {{subnets: [subnet-2], security.groups: [sg-2]}}}}
flows:
  a->b:
    topics: [orders]
    start: 2026-01-01T00:00:00Z
    mapping: {{mode: {mode}, maximum.batching.window.seconds: 0}}
""")

    assert complaints(configuration.flow("a->b").mapping_request("orders")) == []


def test_a_word_that_is_not_in_the_api_would_be_found() -> None:
    """The two tests above could not fail otherwise."""
    assert complaints({"BatchSise": 3})
    assert complaints({"BatchSize": 0})
