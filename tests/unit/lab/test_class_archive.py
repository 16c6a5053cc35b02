"""The broker that is started once to archive its classes."""

from __future__ import annotations

import pytest

from lab.servers import kafka_broker


def test_the_client_that_warms_a_broker_up_writes_nothing_between_the_lines_of_the_lab(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kafka_broker, "ARCHIVED_WITHIN_S", 1.0)

    with pytest.raises(TimeoutError):
        kafka_broker._use("127.0.0.1:1")

    assert capfd.readouterr().err == ""
