"""Choices of the lab where AWS documents nothing: one named switch for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class LabBehaviour:
    """Choices of the lab's event source mapping. None of them is promised by AWS: test under more than one.

    Attributes:
        oversize: what becomes of a record that fits into no event: the mapping passes it over, or stands before it for
            ever. AWS documents what it writes to a destination, and not what it does without one.
        retry_initial_s: pause before the first retry of a batch; doubled for each further one.
        retry_max_s: the longest such pause.
        creation_delay_s: from creation to the first poll; minutes at AWS.
        update_delay_s: how long an update stops polling; up to 90 s at AWS.
        stop_grace_s: how long a stopping poller waits for running invocations, so that it can commit them.
        session_timeout_s: after how long the cluster gives a silent poller's partitions away.
        concurrent_invocations: that one poller has under way at most; 5 by AWS's documentation.
        payloads_ahead: payloads that wait in a partition before it is paused, until less than one does.
        metadata_refresh_s: how soon a poller sees new partitions.
        control_calls_per_second: requests that `lab.esm.lambda_api` answers; one more is 429. AWS documents 15 for all
            calls of an account and region together, and not how many of them it lets pass at once: here one second's.
    """

    oversize: Literal["pass", "stand"] = "pass"
    retry_initial_s: float = 0.2
    retry_max_s: float = 5.0
    creation_delay_s: float = 0.0
    update_delay_s: float = 0.0
    stop_grace_s: float = 5.0
    session_timeout_s: float = 10.0
    concurrent_invocations: int = 5
    payloads_ahead: float = 3.0
    metadata_refresh_s: float = 10.0
    control_calls_per_second: float = 15.0

    def retry_pause_s(self, failures: int) -> float:
        """How long to wait after so many failures in a row (at least 1)."""
        return float(min(self.retry_max_s, self.retry_initial_s * 2 ** min(failures - 1, 16)))
