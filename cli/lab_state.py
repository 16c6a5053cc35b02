"""The state file of a running lab, as far as the commands need it. Other keys are ignored."""

from __future__ import annotations

from pathlib import Path

import msgspec

from cli.args import BadInput

REPLICAS = 3
"""In a lab with as many brokers in each cluster."""


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


class LabTables(msgspec.Struct, frozen=True):
    """Names of the lab's tables."""

    offset_map: str
    lanes: str
    loss_ledger: str
    checkpoints: str
    control: str


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
    tables: LabTables
    mappings: list[LabMapping] = []

    @property
    def replication_factor(self) -> int:
        """Of the topics of its flows; a topic with one replica takes no records where two have to be in sync."""
        brokers = min((len(cluster.brokers) for cluster in self.clusters.values()), default=1)
        return REPLICAS if brokers >= REPLICAS else 1


def read_lab_state(path: Path) -> LabState:
    """Read the file.

    Raises:
        BadInput: it is not there, or is not a lab's state.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=LabState)
    except (OSError, UnicodeDecodeError, msgspec.DecodeError) as exc:
        raise BadInput(
            f"the lab's state file cannot be read: {exc}",
            where=str(path),
            hint="name the state file of a running lab, as `python -m lab up --state FILE` writes it",
        ) from exc
