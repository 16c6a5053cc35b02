"""Choices of the lab where AWS documents nothing: one named switch for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from lab.esm.event import NullHeaderValue


@dataclass(frozen=True, slots=True, kw_only=True)
class LabBehaviour:
    """Choices of the lab's event source mapping. None of them is promised by AWS: test under more than one.

    Attributes:
        mixed_partitions: a payload may hold several partitions of the topic; otherwise one partition per payload.
        isolation_level: what the poller's consumer reads; AWS does not say.
        oversize: what becomes of a record that fits into no event: the mapping passes it over, or stands before it for
            ever. AWS documents what it writes to a destination, and not what it does without one.
        null_header_value: how a header without a value is written in the event.
        assignor: librdkafka's `partition.assignment.strategy`; eager `range` is the Java client's default.
        on_demand_pollers: pollers that an on-demand mapping has at first, and at least.
        scaling_interval_s: between two looks at the lag, after which pollers come or go; 0 for never. A minute at AWS.
        poller_bytes_per_second: of records that one provisioned poller delivers; 0 for no limit. 5 MB at AWS.
        retry_initial_s: pause before the first retry of a batch; doubled for each further one.
        retry_max_s: the longest such pause.
        unreadable: what becomes of a mapping whose role may not read or decrypt its secret: it is not made, or it
            is made and ends disabled, with a reason. AWS documents both the error and the reasons.
        creation_delay_s: from creation to the first poll; minutes at AWS.
        update_delay_s: how long an update stops polling; up to 90 s at AWS.
        stop_grace_s: how long a stopping poller waits for running invocations, so that it can commit them.
        session_timeout_s: after how long the cluster gives a silent poller's partitions away.
        max_poll_interval_s: AWS caps the function at 14 minutes, which suggests 15 here.
        concurrent_invocations: that one poller has under way at most; 5 by AWS's documentation.
        payloads_ahead: payloads that wait in a partition before it is paused, until less than one does.
        metadata_refresh_s: how soon a poller sees new partitions.
        control_calls_per_second: requests that `lab.esm.lambda_api` answers; one more is 429. AWS documents 15 for all
            calls of an account and region together, and not how many of them it lets pass at once: here one second's.
    """

    mixed_partitions: bool = True
    isolation_level: Literal["read_committed", "read_uncommitted"] = "read_committed"
    oversize: Literal["pass", "stand"] = "pass"
    null_header_value: NullHeaderValue = "null"
    assignor: Literal["range", "roundrobin", "cooperative-sticky"] = "range"
    on_demand_pollers: int = 1
    scaling_interval_s: float = 0.0
    poller_bytes_per_second: float = 0.0
    unreadable: Literal["not made", "disabled"] = "not made"
    retry_initial_s: float = 0.2
    retry_max_s: float = 5.0
    creation_delay_s: float = 0.0
    update_delay_s: float = 0.0
    stop_grace_s: float = 5.0
    session_timeout_s: float = 10.0
    max_poll_interval_s: float = 900.0
    concurrent_invocations: int = 5
    payloads_ahead: float = 3.0
    metadata_refresh_s: float = 10.0
    control_calls_per_second: float = 15.0

    def retry_pause_s(self, failures: int) -> float:
        """How long to wait after so many failures in a row (at least 1)."""
        return float(min(self.retry_max_s, self.retry_initial_s * 2 ** min(failures - 1, 16)))
