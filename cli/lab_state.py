"""The state file of a running lab, as far as the commands need it. Other keys are ignored."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import msgspec

from cli.args import BadInput
from mirrorless.errors import ConfigurationError, MirrorlessError
from mirrorless.flow.settings import Tables

REPLICAS = 3
"""In a lab with as many brokers in each cluster."""


VARIABLE = "MIRRORLESS_LAB"
"""The environment variable that names a lab's state file."""

HERE = Path(".lab") / "state.json"
"""Where `make lab` keeps it."""


class LabNotRunning(MirrorlessError):
    """The lab has ended, or was killed."""


class LabNotReady(LabNotRunning):
    """The lab is starting, or ending: records do not flow at this moment."""

    retriable = True


class LabBroker(msgspec.Struct, frozen=True):
    """A broker that the lab runs."""

    id: int


class LabCluster(msgspec.Struct, frozen=True):
    """A cluster that the lab runs."""

    bootstrap: str
    brokers: tuple[LabBroker, ...] = ()


class LabDynamoDb(msgspec.Struct, frozen=True):
    """The lab's DynamoDB."""

    endpoint: str


class LabMapping(msgspec.Struct, frozen=True):
    """One event source mapping."""

    flow: str
    topic: str
    uuid: str = ""
    group_id: str = ""
    state: str = ""
    """As the Lambda API has it: `Enabled`, `Disabled`, …."""
    last_processing_result: str = ""


class LabState(msgspec.Struct, frozen=True):
    """The state file."""

    config: str
    clusters: dict[str, LabCluster]
    dynamodb: LabDynamoDb
    tables: Tables
    keys: str = ""
    """The folder of the keys of rules."""
    mappings: list[LabMapping] = []
    ready: bool = True
    pid: int | None = 0
    """Of the lab itself; null once it has ended."""

    @property
    def runs(self) -> bool:
        """Whether the lab's process is there; taken for granted where the file does not name it."""
        return self.pid == 0 or (self.pid is not None and _exists(self.pid))

    @property
    def replication_factor(self) -> int:
        """Of the topics of its flows; a topic with one replica takes no records where two have to be in sync."""
        brokers = min((len(cluster.brokers) for cluster in self.clusters.values()), default=1)
        return REPLICAS if brokers >= REPLICAS else 1


def read_lab_state(path: Path) -> LabState:
    """Read the file.

    Raises:
        BadInput: it is not there, or is not a lab's state.
        LabNotRunning: the lab has ended.
        LabNotReady: it is starting, or ending.
    """
    try:
        state = msgspec.json.decode(path.read_bytes(), type=LabState)
    except (OSError, UnicodeDecodeError, msgspec.DecodeError) as exc:
        raise BadInput(
            f"the lab's state file cannot be read: {exc}",
            where=str(path),
            hint="name the state file of a running lab, as `python -m lab up --state FILE` writes it",
        ) from exc
    if not state.runs:
        raise LabNotRunning(
            "the lab is not running", where=str(path), hint="`make lab` starts it again, with the data that it had"
        )
    if not state.ready:
        raise LabNotReady("the lab is starting, or ending", where=str(path), hint="wait until it says: records flow")
    return state


def choose_lab(arguments: argparse.Namespace) -> None:
    """Set `--lab` where it is left out: to MIRRORLESS_LAB, or to a lab that runs here. `--config` means AWS."""
    if getattr(arguments, "lab", "") is not None or arguments.config is not None:
        return
    arguments.lab = os.environ.get(VARIABLE) or None
    if arguments.lab is None and HERE.exists():
        try:
            read_lab_state(HERE)
        except (BadInput, LabNotRunning):
            return
        arguments.lab = str(HERE)
        if sys.stderr.isatty():
            print(f"mirrorless: this is the lab of {HERE}; --config FILE means AWS", file=sys.stderr)


def without_credentials(error: MirrorlessError) -> MirrorlessError:
    """The error to report of a command about AWS: that there are no credentials, where this is why a call failed."""
    cause: BaseException | None = error
    while cause is not None and type(cause).__name__ != "NoCredentialsError":  # by name: botocore is slow to import
        cause = cause.__cause__
    if cause is None:
        return error
    if HERE.exists():
        hint = "`make lab` starts it again, with the data that it had; for AWS, set AWS_PROFILE"
        return LabNotRunning(
            "the lab is not running, and there are no credentials for AWS either", where=str(HERE), hint=hint
        )
    hint = "set AWS_PROFILE, or what else gives credentials; or start a lab here: `make lab`"
    return ConfigurationError("there are no credentials for AWS", where=error.where, hint=hint)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # another user's
    try:
        # Dead, and not reaped by its parent yet.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return not Path("/proc/self/stat").exists()  # a system that has no such files
