"""The inputs of schedules: settings of the scheduled functions, and of one shard."""

from __future__ import annotations

from typing import Any

import pytest

from mirrorless.errors import ConfigurationError
from mirrorless.flow.settings import control_settings, pull_settings

FLOW = {
    "flow": "us-east->eu-west",
    "source": {"alias": "us-east", "bootstrap": "s:1"},
    "target": {"alias": "eu-west", "bootstrap": "t:1"},
}
CONTROL: dict[str, Any] = FLOW | {"trigger": "schedule", "trigger_overrides": {"orders": "mapping"}}


def test_a_shards_input_holds_the_settings_of_its_flow() -> None:
    settings = pull_settings({"flow": CONTROL, "shard": 1, "shards": 2, "continuous": True})

    assert settings.flow == control_settings(CONTROL)
    assert (settings.flow.triggers.of("orders"), settings.flow.triggers.of("logs")) == ("mapping", "schedule")
    assert (settings.continuous, settings.interval_seconds, settings.maximum_bytes_per_second) == (True, 60, None)


@pytest.mark.parametrize(
    ("event", "said"),
    [
        ({"flow": CONTROL, "shard": 2, "shards": 2}, "there is no shard 2 of 2"),
        ({"flow": CONTROL, "shard": 0}, "shards"),
        ({"flow": CONTROL | {"flow": "us-east"}, "shard": 0, "shards": 1}, "us-east"),
        ({"flow": CONTROL | {"trigger": "poll"}, "shard": 0, "shards": 1}, "poll"),
    ],
)
def test_an_input_that_is_wrong_is_refused_by_name(event: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        pull_settings(event)
