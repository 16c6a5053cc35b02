"""What tests of several folders ask for: the operator's commands, and an AWS."""

from __future__ import annotations

import os
from collections.abc import Iterator

import boto3
import pytest
from moto import mock_aws

from tests.support.commands import Command


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """The operator's commands, run in this process."""
    return Command(capsys)


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The AWS of moto, empty, of this test alone: credentials of no example's account, in eu-west-1."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in {"ACCESS_KEY_ID": "k", "SECRET_ACCESS_KEY": "s", "DEFAULT_REGION": "eu-west-1"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    with mock_aws():
        yield
