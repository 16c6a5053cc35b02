"""On-failure destinations for records that a function never accepted: SQS, SNS, S3, or a Kafka topic.

SQS and SNS get metadata, S3 the whole event as well, a Kafka topic one record for each source record, with its key.
The formats follow AWS's samples, inconsistencies included: `RetryAttemptsExhausted` here and `RetriesExhausted` in a
Kafka topic; `recordsInfo` here, `recordInfo` there; offsets as strings.
"""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException, Producer

from lab.esm.batches import RETRIES_EXHAUSTED
from lab.esm.event import EventSource, encode_event

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lab.esm.event import EncodedRecord
    from lab.functions.invocation import Invocation


class DeliveryFailedError(Exception):
    """The destination did not take the records: they are lost, as AWS loses them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenUp:
    """Records that are given up, and why.

    Attributes:
        uuid: the mapping's id.
        source: where the records come from.
        function_arn: who did not accept them.
        condition: AWS's word for the reason.
        records: the records, in order.
        attempts: how often the function was invoked with them.
        invocation: the last outcome; None when it was never invoked.
        when: the time of giving up, with a time zone.
    """

    uuid: str
    source: EventSource
    function_arn: str
    condition: str
    records: Sequence[EncodedRecord]
    attempts: int
    invocation: Invocation | None
    when: dt.datetime

    def metadata(self) -> dict[str, Any]:
        """The record for SQS and SNS."""
        event = encode_event(self.source, self.records)
        lanes: dict[str, list[EncodedRecord]] = {}
        for record in self.records:
            lanes.setdefault(f"{self.source.topic}-{record.partition}", []).append(record)
        info = {
            name: {
                "firstRecordOffset": str(records[0].offset),
                "lastRecordOffset": str(records[-1].offset),
                "firstRecordTimestamp": _iso(records[0].timestamp_ms),
                "lastRecordTimestamp": _iso(records[-1].timestamp_ms),
            }
            for name, records in lanes.items()
        }
        batch = {"batchSize": len(self.records), **self._origin(), "payloadSize": len(event), "recordsInfo": info}
        return {**self._contexts(self.condition), "KafkaBatchInfo": batch}

    def metadata_and_event(self) -> dict[str, Any]:
        """The object for S3: the metadata, and the whole event as a string."""
        return {**self.metadata(), "payload": encode_event(self.source, self.records).decode()}

    def envelope(self, record: EncodedRecord) -> dict[str, Any]:
        """The value for a Kafka topic: one source record, in the form of an event."""
        condition = "RetriesExhausted" if self.condition == RETRIES_EXHAUSTED else self.condition
        event = encode_event(self.source, [record])
        info = {"offset": str(record.offset), "timestamp": _iso(record.timestamp_ms)}
        batch = {"batchSize": 1, **self._origin(), "payloadSize": len(event), "recordInfo": info}
        return {**self._contexts(condition), "KafkaBatchInfo": batch, "payload": json.loads(event)}

    def _origin(self) -> dict[str, str]:
        arn = {} if self.source.arn is None else {"eventSourceArn": self.source.arn}
        return {**arn, "bootstrapServers": self.source.bootstrap_servers}

    def _contexts(self, condition: str) -> dict[str, Any]:
        answered = None
        if self.invocation is not None:
            error = {} if self.invocation.status == "success" else {"functionError": "Unhandled"}
            status = 429 if self.invocation.status == "throttled" else 200
            answered = {"statusCode": status, "executedVersion": "$LATEST", **error}
        return {
            "requestContext": {
                "requestId": "" if self.invocation is None else self.invocation.request_id,
                "functionArn": self.function_arn,
                "condition": condition,
                "approximateInvokeCount": self.attempts,
            },
            "responseContext": answered,
            "version": "1.0",
            "timestamp": _iso(int(self.when.timestamp() * 1000)),
        }


@dataclass(slots=True, kw_only=True)
class Destinations:
    """The clients that deliver to on-failure destinations. A destination whose client is missing is refused early.

    Attributes:
        sqs: a boto3 client, or None.
        sns: a boto3 client, or None.
        s3: a boto3 client, or None.
        timeout_s: how long a Kafka topic may take to acknowledge.
    """

    sqs: Any = None
    sns: Any = None
    s3: Any = None
    timeout_s: float = 30.0
    _producers: dict[str, Producer] = field(default_factory=dict, init=False)

    def missing(self, destination: str) -> str:
        """The service that this destination needs and that has no client here; empty when all is there."""
        service = destination.split(":")[2] if destination.startswith("arn:") else ""
        clients = {"": self, "sqs": self.sqs, "sns": self.sns, "s3": self.s3}
        return service if clients.get(service) is None else ""

    def deliver(self, destination: str, given_up: GivenUp) -> None:
        """Deliver, and return when the destination has it.

        Raises:
            DeliveryFailedError: it does not have it; AWS counts these records as dropped.
        """
        try:
            if destination.startswith("kafka://"):
                self._to_topic(destination.removeprefix("kafka://"), given_up)
            else:
                self._to_service(destination, given_up)
        except Exception as exc:  # a boto3 client raises what it likes, and every reason ends the same way
            raise DeliveryFailedError(f"{destination} did not take {len(given_up.records)} records: {exc}") from exc

    def _to_service(self, arn: str, given_up: GivenUp) -> None:
        service, name = arn.split(":")[2], arn.rsplit(":", maxsplit=1)[-1]
        if service == "sqs":
            url = self.sqs.get_queue_url(QueueName=name)["QueueUrl"]
            self.sqs.send_message(QueueUrl=url, MessageBody=json.dumps(given_up.metadata()))
        elif service == "sns":
            self.sns.publish(TopicArn=arn, Message=json.dumps(given_up.metadata()))
        else:
            when, first = given_up.when, given_up.records[0]
            place = f"{given_up.source.topic}-{first.partition}-{first.offset}"
            key = f"aws/lambda/{given_up.uuid}/{when:%Y/%m/%d}/{when:%Y-%m-%dT%H.%M.%S}-{place}"
            body = json.dumps(given_up.metadata_and_event(), ensure_ascii=False).encode()
            self.s3.put_object(Bucket=name, Key=key, Body=body)

    def _to_topic(self, topic: str, given_up: GivenUp) -> None:
        servers = given_up.source.bootstrap_servers
        producer = self._producers.get(servers)
        if producer is None:
            timeout_ms = int(self.timeout_s * 1000)
            config = {"bootstrap.servers": servers, "message.timeout.ms": timeout_ms, "message.max.bytes": 16 << 20}
            producer = self._producers.setdefault(servers, Producer(config))
        refused: list[object] = []
        for record in given_up.records:
            value = json.dumps(given_up.envelope(record), ensure_ascii=False).encode()
            producer.produce(
                topic, value, record.key, on_delivery=lambda error, _: refused.append(error) if error else None
            )
        left = producer.flush(self.timeout_s + 1)
        if refused or left:
            raise KafkaException(refused[0] if refused else f"{left} records were not acknowledged in time")


def _iso(timestamp_ms: int) -> str:
    moment = dt.datetime.fromtimestamp(timestamp_ms / 1000, dt.UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{timestamp_ms % 1000:03}Z"
