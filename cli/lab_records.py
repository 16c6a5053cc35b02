"""`mirrorless lab produce | consume`: records of one's own for a running lab, and what its topics hold."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from cli.args import BadInput
from cli.lab import QUIET, Ends, cluster_of, cluster_with, ends_of, lab_of
from cli.output import moment, print_json
from mirrorless.reports.format import numbered

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message, Producer

ANSWER_SECONDS = 10.0
"""For the acknowledgement of the last records."""

SAY_EVERY_SECONDS = 1.0
"""Between two lines of progress."""

QUEUED = 50_000
"""Records that the client holds at most: half of what it can."""


@dataclass(slots=True)
class _Sending:
    """The records of one command that are on their way."""

    producer: Producer
    rate: int | None
    began: float = field(default_factory=time.monotonic)
    sent: int = 0
    refused: list[str] = field(default_factory=list)
    _said: float = field(default_factory=time.monotonic)

    def send(self, topic: str, key: str | None, value: str, partition: int) -> None:
        """Send one record, no sooner than the rate allows."""
        while len(self.producer) > QUEUED:
            self.producer.poll(0.1)
        self.producer.produce(topic, value, key, partition, on_delivery=self._delivered)
        self.producer.poll(0)
        self.sent += 1
        now = time.monotonic()
        if now > self._said + SAY_EVERY_SECONDS:
            self._said = now
            print(f"{self.sent:,} records, {self.sent / (now - self.began):,.0f} a second", file=sys.stderr)
        if self.rate and (early := self.began + self.sent / self.rate - now) > 0:
            time.sleep(early)  # the rate that was asked for

    def _delivered(self, error: object, _: Message) -> None:
        if error is not None:
            self.refused.append(str(error))


def run_produce(arguments: argparse.Namespace) -> int:
    """Write records. Exit code 1 where some were not acknowledged."""
    from confluent_kafka import KafkaException, Producer  # noqa: PLC0415 -- commands without Kafka start sooner

    state = lab_of(arguments)
    alias = cluster_of(arguments, state)
    topic = arguments.topic
    if topic not in ends_of(state, alias):
        hint = f"`mirrorless lab topics --create {topic} --cluster {alias}` creates it"
        raise BadInput(f"{alias} has no topic {topic}", where="TOPIC", hint=hint)
    settings = {"bootstrap.servers": state.clusters[alias].bootstrap, "enable.idempotence": True, **QUIET}
    sending = _Sending(Producer(settings), arguments.rate)
    try:
        for key, value in _records(arguments):
            sending.send(topic, key, value, -1 if arguments.partition is None else arguments.partition)
    except KeyboardInterrupt:
        pass  # what was sent counts
    except KafkaException as exc:
        raise BadInput(str(exc.args[0]), where=f"{alias} {topic}") from exc
    failed = sending.producer.flush(ANSWER_SECONDS) + len(sending.refused)
    seconds = time.monotonic() - sending.began
    if arguments.json:
        answer = {"cluster": alias, "topic": topic, "records": sending.sent, "failed": failed}
        print_json(answer | {"seconds": round(seconds, 3)})
    else:
        print(f"{numbered(sending.sent, 'record')} to {topic} on {alias} in {seconds:.1f} s.")
        if failed:
            why = sending.refused[0] if sending.refused else "no answer in time"
            print(f"! {numbered(failed, 'record')} of them not acknowledged: {why}")
    return int(bool(failed))


def run_consume(arguments: argparse.Namespace) -> int:
    """Read records, each on a line: partition, offset, time, key, value."""
    from confluent_kafka import Consumer, KafkaException  # noqa: PLC0415 -- same

    state = lab_of(arguments)
    alias = cluster_with(arguments, state)
    where = f"{alias} {arguments.topic}"
    settings = {
        "bootstrap.servers": state.clusters[alias].bootstrap,
        "group.id": arguments.group or "mirrorless.lab.consume",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
        **QUIET,
    }
    consumer, seen = Consumer(settings), 0
    try:
        for message in _messages(consumer, arguments, ends_of(state, alias)[arguments.topic], where):
            seen += 1
            _show(message, as_json=arguments.json)
            if seen == arguments.records:
                break
        if arguments.group and seen:
            consumer.commit(asynchronous=False)
    except KeyboardInterrupt:
        pass  # the end of --follow
    except KafkaException as exc:
        raise BadInput(str(exc.args[0]), where=where) from exc
    finally:
        consumer.close()
    if not arguments.json:
        committed = f", committed by group {arguments.group}" if arguments.group and seen else ""
        print(f"{numbered(seen, 'record')} of {arguments.topic} on {alias}{committed}.", file=sys.stderr)
    return 0


def _messages(consumer: Consumer, arguments: argparse.Namespace, ends: Ends, where: str) -> Iterator[Message]:
    """Every record up to the ends of all partitions; with `--follow`, without an end."""
    from confluent_kafka import KafkaError, TopicPartition  # noqa: PLC0415 -- same

    if arguments.group:
        consumer.subscribe([arguments.topic])
    else:
        consumer.assign([TopicPartition(arguments.topic, number, first) for number, (first, _) in enumerate(ends)])
    at_end = set[int]()
    while arguments.follow or len(at_end) < len(consumer.assignment() or ends):
        message = consumer.poll(0.2)
        if message is None:
            continue
        error = message.error()
        if error is None:
            yield message
        elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 -- its name
            at_end.add(message.partition() or 0)
        else:
            raise BadInput(error.str(), where=where)


def _show(message: Message, *, as_json: bool) -> None:
    key, value = _text(message.key()), _text(message.value())
    place, at = {"partition": message.partition(), "offset": message.offset()}, message.timestamp()[1]
    if as_json:
        print_json({**place, "timestamp": at, "key": key, "value": value}, indent=None)
    else:
        print(f"{message.partition()} {message.offset():>8}  {moment(at)}  {key}  {value}")


def _text(content: bytes | str | None) -> str | None:
    return content.decode(errors="backslashreplace") if isinstance(content, bytes) else content


def _records(arguments: argparse.Namespace) -> Iterator[tuple[str | None, str]]:
    """Keys and values: of a file's lines, or numbered."""
    if arguments.lines is None:
        for number in range(arguments.records):
            yield f"key-{number % arguments.keys}", f"record {number}".ljust(arguments.size, ".")
        return
    try:
        with Path("/dev/stdin" if arguments.lines == "-" else arguments.lines).open(encoding="utf-8") as lines:
            for line in lines:
                key, tab, value = line.rstrip("\n").partition("\t")
                yield (key, value) if tab else (None, key)
    except (OSError, UnicodeDecodeError) as exc:
        raise BadInput(f"the records cannot be read: {exc}", where="--from") from exc
