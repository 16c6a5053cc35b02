"""The source's logs by whole batches, as a pull reads them: a raw log under the port of the Kafka client's."""

from __future__ import annotations

from mirrorless.adapters.kafka.wire.raw_log import KafkaRawLog
from mirrorless.pull.log import Arrivals


class KafkaBatchLog(KafkaRawLog):
    """Implements `mirrorless.pull.log.PulledLog` with whole batches in the place of records."""

    def arrivals(self, seconds: float, *, records: int, size: int) -> Arrivals:  # type: ignore[override]  # the port's
        """See `PulledLog.arrivals`. How many records there are costs nothing here: bytes limit what is returned."""
        found = super().arrivals(seconds, records=records if records <= 0 else 2**31, size=size)
        return Arrivals(
            records=dict(found.records),
            bytes=found.bytes,
            ended=found.ended,
            out_of_range=found.out_of_range,
            truncated=found.truncated,
            unreadable=found.unreadable,
        )
