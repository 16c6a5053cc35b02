"""What is a job asked to do? One JSON text, written by whoever starts it and read by its driver.

It says everything: the flow as the functions know it, the topics, and what this kind of job needs beside. So a run that
is started again from the same request does the same, whatever replication.yaml says by then.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from mirrorless.errors import ConfigurationError
from mirrorless.settings import FlowSettings

JobKind = Literal["backfill", "verify", "reconcile"]

LEASE_SECONDS = 300
"""For how long a lane stays with a job that is dead. A job that lives renews its leases long before."""


class Bound(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A place in a topic's history."""

    kind: Literal["earliest", "latest", "offset", "timestamp"]
    value: int = 0
    """An upstream offset, or ms since the epoch; nothing for the other two."""


class BackfillOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="backfill"):
    """Which history is copied."""

    start: Bound = Bound("earliest")
    """Inclusive: the first record at or after it."""
    end: Bound = Bound("latest")
    """Exclusive. `latest` is the end as it is when the lane gets there, and hands over to the mapping."""
    archive: str | None = None
    """URI or path of a folder of Parquet files with raw records; None to read the source cluster."""
    into: str | None = None
    """A topic of its own on the target, for history older than a lane that is already live."""
    max_mb_per_second: float | None = None
    """Of key and value bytes, all lanes together; None for no cap."""
    free_gb: float | None = None
    """What the target's disks have left, where the operator says it."""
    force: bool = False
    """Start although a check warns."""
    handover_seconds: int = 120
    """How long to wait, at the end, for the mapping to show how far it is."""


class VerifyOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="verify"):
    """Which part of the copy is proved, and against what."""

    start: Bound = Bound("earliest")
    end: Bound = Bound("latest")
    against_source: bool = False
    """Compare with the source's records as well, where it still has them."""


Policy = Literal["replay", "quarantine", "report"]


class ReconcileOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="reconcile"):
    """What becomes of the difference."""

    policy: Policy = "report"
    """Of orphans: records on the source that were never replicated."""
    policies: dict[str, Policy] = {}
    """By topic, where it is another one."""
    groups: tuple[str, ...] = (".*",)
    groups_exclude: tuple[str, ...] = ()
    """Whose offsets are brought back."""
    look_only: bool = False
    """Find out and report; change nothing."""


Options = BackfillOptions | VerifyOptions | ReconcileOptions


class JobRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A job run, as it is asked for."""

    run_id: str
    """`backfill-20261121T203355-1f3a`: unique, sorts by kind and time, and is the holder of its leases."""
    flow: FlowSettings
    topics: tuple[str, ...]
    """On the source, literal names: patterns are resolved by whoever asks."""
    options: Options
    aliases: tuple[str, ...] = ()
    """Every cluster alias of the configuration."""
    partitions: dict[str, tuple[int, ...]] = {}
    """By topic, where not all are meant."""
    lease_seconds: int = LEASE_SECONDS

    @property
    def kind(self) -> JobKind:
        """Which job."""
        match self.options:
            case BackfillOptions():
                return "backfill"
            case VerifyOptions():
                return "verify"
            case ReconcileOptions():
                return "reconcile"


def encode_request(request: JobRequest) -> bytes:
    """The JSON text."""
    return msgspec.json.encode(request)


def decode_request(text: bytes | str) -> JobRequest:
    """Read a request.

    Raises:
        ConfigurationError: naming the field that is missing or wrong.
    """
    try:
        return msgspec.json.decode(text, type=JobRequest)
    except msgspec.DecodeError as exc:
        raise ConfigurationError(
            f"this is no job's request: {exc}",
            where="request.json",
            hint="start jobs with `mirrorless … start`, of the same version as what is deployed",
        ) from exc
