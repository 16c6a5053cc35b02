"""The scheduled functions in the lab: their flows, their settings, and what is refused before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lab.cloud import Lab
from lab.functions.control import ControlPlane
from lab.functions.function import LambdaFunction
from mirrorless.config.loading import load
from mirrorless.errors import ConfigurationError

CONFIGURATION = """
clusters:
  a: {bootstrap.servers: a.example.com:9092, region: us-east-1}
  b: {bootstrap.servers: b.example.com:9092, region: eu-west-1}
flows:
  a->b: {topics: [TOPIC]}
"""


def configuration(topic: str = "orders") -> Any:
    return load(CONFIGURATION.replace("TOPIC", topic))


def test_each_flow_has_two_scheduled_functions_with_a_timer_each(tmp_path: Path) -> None:
    (flow,) = configuration().enabled_flows
    plane = ControlPlane(folder=tmp_path, overrides={"refresh_topics_seconds": 1})

    functions = plane.deploy([flow], variables={"A": "b"}, forwarder=lambda _: "forwarder")

    assert sorted(functions) == ["mirrorless-control-a_b", "mirrorless-refresh-topics-a_b"]
    assert plane.timers.keys() == functions.keys()
    assert all(isinstance(function, LambdaFunction) for function in functions.values())
    plane.stop()


def test_an_override_that_is_no_setting_is_refused(tmp_path: Path) -> None:
    (flow,) = configuration().enabled_flows
    plane = ControlPlane(folder=tmp_path, overrides={"refresh_topic_seconds": 1})

    with pytest.raises(ConfigurationError, match="refresh_topic_seconds"):
        plane.deploy([flow], variables={}, forwarder=str)


def test_patterns_are_followed_by_the_scheduled_functions_and_refused_without_them(tmp_path: Path) -> None:
    assert Lab(configuration=configuration("'orders-.*'"), folder=tmp_path).flow_mappings == []
    with pytest.raises(ConfigurationError, match="patterns"):
        Lab(configuration=configuration("'orders-.*'"), folder=tmp_path, control=False)


def test_stand_ins_of_one_broker_keep_one_replica_of_every_topic(tmp_path: Path) -> None:
    """Whichever topic a scheduled function makes: with more replicas than brokers it could not be made."""
    (flow,) = Lab(configuration=configuration(), folder=tmp_path).flows
    settings = flow.control_settings("forwarder")

    factors = {name: value for name, value in settings.items() if name.endswith("replication_factor")}
    assert len(factors) >= 3
    assert set(factors.values()) == {1}
    assert settings["flow"]["replication_factor"] == 1
