"""The request of a job run: one JSON text, written when the run is started and read by its driver.

It is complete: the settings of the flow as the functions have them, the topics, and the options of this kind of job. So
a run that is started again from the same request does the same, also after a change of replication.yaml. It is the
first file in the folder of its run:

    jobs/<run id>/request.json        the request; written once, when the run is started
    jobs/<run id>/plan.json           the plan, lane by lane; written by the driver before it begins
    jobs/<run id>/lanes/<lane>.json   the progress of each lane; written by its task, every few seconds
    jobs/<run id>/findings/, …        results of a verification, see `spark.jobs.verify.lanes`
    jobs/<run id>/progress.json       the sum, with the run's state; written by the driver
    jobs/<run id>/report.json, .html  the report; written last, by the driver

The folder is in the flow's part of the deployment's bucket, or anywhere on disk for a run on this machine. The
correctness of a job rests on the chains alone: losing the folder loses the report, nothing else.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from mirrorless.errors import ConfigurationError
from mirrorless.flow.naming import bounded
from mirrorless.flow.settings import FlowSettings

JobKind = Literal["backfill", "verify", "reconcile", "audit"]

LEASE_SECONDS = 300
"""How long a lane stays with a dead job. A living one renews its leases long before."""


class Bound(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A bound in a topic's history."""

    kind: Literal["earliest", "latest", "offset", "timestamp"]
    value: int = 0
    """An upstream offset, or ms since the epoch; 0 for the other two."""


class BackfillOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="backfill"):
    """The history to copy."""

    start: Bound = Bound("earliest")
    """Inclusive: the first record at or after it."""
    end: Bound = Bound("latest")
    """Exclusive. `latest` is the end at the moment when the lane reaches it; the mapping continues from there."""
    archive: str | None = None
    """URI or path of a folder of Parquet files with raw records; None to read the source cluster."""
    into: str | None = None
    """A topic of its own on the target, for history older than a lane that is already live."""
    max_mb_per_second: float | None = None
    """Of key and value bytes, all lanes together; None for no cap."""
    free_gb: float | None = None
    """Free space on the target's disks, where the operator gives it."""
    force: bool = False
    """Start although a check warns."""
    beside: bool = False
    """Write behind records on the target that the flow has not written."""
    handover_seconds: int = 120
    """The wait for the mapping's first offset, at the end."""


class VerifyOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="verify"):
    """The part of the copy to prove, and the evidence."""

    start: Bound = Bound("earliest")
    end: Bound = Bound("latest")
    against_source: bool = False
    """Compare with the source's records as well, where it still has them."""


Policy = Literal["replay", "quarantine", "report"]

Conflicts = Literal["keep-newest", "replay"]


class ReconcileOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="reconcile"):
    """The policies of the difference."""

    policy: Policy = "report"
    """Of orphans: records on the source that were never replicated."""
    policies: dict[str, Policy] = {}
    """By topic, where it differs from `policy`."""
    groups: tuple[str, ...] = (".*",)
    groups_exclude: tuple[str, ...] = ()
    """Whose offsets are brought back."""
    look_only: bool = False
    """Inspect and report; change nothing."""
    live_source: bool = False
    """Whether the source may be written to meanwhile: what comes until its copies stand there counts as an orphan."""
    conflicts: Conflicts = "keep-newest"
    """Which orphans of a compacted topic are replayed: those that are their keys' newest records, or all."""

    def policy_of(self, topic: str) -> Policy:
        """The policy of one topic's orphans."""
        return self.policies.get(topic, self.policy)


PROVENANCE: Final = ("__mskmr",)
"""Headers that replicators are known to add: MSK Replicator does."""


class AuditOptions(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind", tag="audit"
):
    """The copies of another replicator, and what of them is compared."""

    copies: dict[str, str]
    """The name of each topic's copy on the target."""
    timestamps: bool = True
    """Whether timestamps are compared."""
    headers_left_out: tuple[str, ...] = PROVENANCE
    """Names of headers that are not compared: the replicator adds them."""
    wait_seconds: float = 30.0
    """For what is on its way."""


Options = BackfillOptions | VerifyOptions | ReconcileOptions | AuditOptions


class JobRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The request of a job run."""

    run_id: str
    """`backfill-20261121T203355-1f3a`: unique, sorts by kind and time, and is the holder of its leases."""
    flow: FlowSettings
    topics: tuple[str, ...]
    """Literal names on the source: patterns are resolved before."""
    options: Options
    aliases: tuple[str, ...] = ()
    """Every cluster alias of the configuration."""
    partitions: dict[str, tuple[int, ...]] = {}
    """By topic, where not all are wanted."""
    lease_seconds: int = LEASE_SECONDS

    @property
    def kind(self) -> JobKind:
        """The kind of job."""
        match self.options:
            case BackfillOptions():
                return "backfill"
            case VerifyOptions():
                return "verify"
            case ReconcileOptions():
                return "reconcile"
            case AuditOptions():
                return "audit"


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
            f"this is no request of a job: {exc}",
            where="request.json",
            hint="start jobs by the command of the same version as what is deployed",
        ) from exc


REQUEST, PLAN, PROGRESS, REPORT, PAGE = "request.json", "plan.json", "progress.json", "report.json", "report.html"


TOPIC_BYTES: Final = 150
"""Of a topic's name in a file's, which has 255 on disks, and a temporary name beside it."""


def lane_file(topic: str, partition: int, what: str = "lanes", *, end: str = ".json") -> str:
    """The name of a file about a lane, by default the one with its progress."""
    return f"{what}/{bounded(topic, TOPIC_BYTES)}-{partition}{end}"
