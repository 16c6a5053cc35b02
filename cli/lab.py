"""`mirrorless lab topics | produce | consume`: the topics of a running lab, and records of one's own."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.args import BadInput, add_deployment, partition, whole
from cli.deployment import DeployedFlows, LabState, read_lab_state
from cli.output import TableColumns, console, moment, print_json, say, table
from mirrorless.reports.format import numbered

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message, Producer

ANSWER_SECONDS = 10.0
"""For one answer of a cluster, and for the acknowledgement of the last records."""

SAY_EVERY_SECONDS = 1.0
"""Between two lines of progress."""

QUIET = {"log_level": 0}

_COUNT = whole("a number", 10**9, least=1)

Ends = list[tuple[int, int]]
"""First and next offset of each partition of a topic."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands of `lab`."""
    lab = subparsers.add_parser("lab", help="list topics of the lab on this machine, write records there, read them")
    commands = lab.add_subparsers(required=True, metavar="COMMAND")

    topics = commands.add_parser(
        "topics",
        help="list the topics of each cluster with its address; create or delete one",
        epilog="Example: mirrorless lab topics --create orders --partitions 3",
    )
    how = topics.add_mutually_exclusive_group()
    how.add_argument("--create", metavar="TOPIC", help="create this topic")
    how.add_argument("--delete", metavar="TOPIC", help="delete this topic with its records")
    topics.add_argument("--partitions", metavar="N", type=_COUNT, default=6, help="of the new one (default: 6)")

    produce = commands.add_parser(
        "produce",
        help="write records to a topic, at a rate, from a file, or numbered ones",
        epilog="Example: mirrorless lab produce orders --records 6000 --rate 500",
    )
    produce.add_argument("topic", metavar="TOPIC", help="on the source of the first flow, or on --cluster")
    produce.add_argument("--records", metavar="N", type=_COUNT, default=1000, help="how many (default: 1000)")
    produce.add_argument("--rate", metavar="N", type=_COUNT, help="records a second (default: as fast as it goes)")
    produce.add_argument("--size", metavar="BYTES", type=_COUNT, default=20, help="of a value (default: 20)")
    produce.add_argument("--keys", metavar="N", type=_COUNT, default=100, help="different ones (default: 100)")
    produce.add_argument("--partition", metavar="P", type=partition, help="all of them there (default: by the key)")
    produce.add_argument("--from", dest="lines", metavar="FILE", help="a record from each line, KEY<tab>VALUE or VALUE")

    consume = commands.add_parser(
        "consume",
        help="read a topic from its beginning, or where a group stands, to its end",
        epilog="Example: mirrorless lab consume us-east.orders --group shop --records 10",
    )
    consume.add_argument("topic", metavar="TOPIC", help="on whichever cluster has it, or on --cluster")
    consume.add_argument("--records", metavar="N", type=_COUNT, help="how many at most (default: all)")
    consume.add_argument("--group", metavar="GROUP", help="read on where this group stands, and commit")
    consume.add_argument("--follow", action="store_true", help="wait for more at the end, until Ctrl-C")

    for parser, run in ((topics, run_topics), (produce, run_produce), (consume, run_consume)):
        parser.add_argument("--cluster", metavar="ALIAS", help="of the lab")
        add_deployment(parser, run)


def run_topics(arguments: argparse.Namespace) -> int:
    """List topics, or create or delete one."""
    from confluent_kafka.admin import AdminClient, NewTopic  # noqa: PLC0415 -- commands without Kafka start sooner

    state = lab_of(arguments)
    if (name := arguments.create or arguments.delete) is not None:
        alias = cluster_of(arguments, state)
        admin = AdminClient({"bootstrap.servers": state.clusters[alias].bootstrap, **QUIET})
        new = NewTopic(name, arguments.partitions)
        future = (admin.create_topics([new]) if arguments.create else admin.delete_topics([name]))[name]
        _done(future, f"{alias} {name}")
        say(f"{name}: {'created' if arguments.create else 'deleted'} on {alias}.")
        return 0
    found = {alias: ends_of(state, alias) for alias in sorted(state.clusters) if arguments.cluster in {None, alias}}
    if arguments.json:
        clusters = {
            alias: {"bootstrap": state.clusters[alias].bootstrap, "topics": topics} for alias, topics in found.items()
        }
        print_json({"clusters": clusters})
        return 0
    for alias, topics in found.items():
        title = f"{alias}  {state.clusters[alias].bootstrap}"
        console().print(table(title, _COLUMNS, sorted(topics.items())))
    return 0


_COLUMNS: TableColumns[tuple[str, Ends]] = (
    ("topic", lambda each: each[0]),
    (">partitions", lambda each: len(each[1])),
    (">offsets", lambda each: sum(after - first for first, after in each[1])),
)


def lab_of(arguments: argparse.Namespace) -> LabState:
    """Raises BadInput where no lab is named and none runs here."""
    if arguments.lab is None:
        raise BadInput("no lab runs here", hint="start one with `make lab`, or name its state file with --lab")
    state = read_lab_state(Path(arguments.lab))
    if arguments.cluster not in {None, *state.clusters}:
        raise BadInput(f"the lab has no cluster {arguments.cluster}", where="--cluster", hint=", ".join(state.clusters))
    return state


def cluster_of(arguments: argparse.Namespace, state: LabState) -> str:
    """The cluster that is named, or the source of the first flow."""
    if arguments.cluster is not None:
        return str(arguments.cluster)
    return DeployedFlows(config=Path(state.config), lab=state).configuration.enabled_flows[0].name.source


def cluster_with(arguments: argparse.Namespace, state: LabState) -> str:
    """The cluster that is named, or the only one that has the topic."""
    named = [arguments.cluster] if arguments.cluster is not None else sorted(state.clusters)
    found = [alias for alias in named if arguments.topic in ends_of(state, alias)]
    if not found:
        raise BadInput(
            f"no topic {arguments.topic} on {', '.join(named)}", where="TOPIC", hint="see `mirrorless lab topics`"
        )
    if len(found) > 1:
        raise BadInput(
            f"topic {arguments.topic} is on {', '.join(found)}", where="TOPIC", hint="name one with --cluster"
        )
    return found[0]


def ends_of(state: LabState, alias: str) -> dict[str, Ends]:
    """First and next offset of each partition, by topic, without Kafka's own topics.

    Raises:
        BadInput: the cluster does not answer.
    """
    from mirrorless.adapters.kafka.offsets import KafkaOffsets  # noqa: PLC0415 -- same
    from mirrorless.flow.settings import ClusterSettings  # noqa: PLC0415 -- same

    offsets = KafkaOffsets(ClusterSettings(alias=alias, bootstrap=state.clusters[alias].bootstrap), flow="lab")
    topics = {topic: number for topic, number in offsets.partitions().items() if not topic.startswith("__")}
    extents = offsets.extents((topic, each) for topic, number in topics.items() for each in range(number))
    return {
        topic: [(found.start, found.end) if (found := extents.get((topic, each))) else (0, 0) for each in range(number)]
        for topic, number in topics.items()
    }


def _done(future: Any, where: str) -> None:
    from confluent_kafka import KafkaException  # noqa: PLC0415 -- same

    try:
        future.result(ANSWER_SECONDS)
    except KafkaException as exc:
        raise BadInput(exc.args[0].str(), where=where) from exc


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
            say(f"{self.sent:,} records, {self.sent / (now - self.began):,.0f} a second", err=True)
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
        say(f"{numbered(sending.sent, 'record')} to {topic} on {alias} in {seconds:.1f} s.")
        if failed:
            why = sending.refused[0] if sending.refused else "no answer in time"
            say(f"! {numbered(failed, 'record')} of them not acknowledged: {why}")
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
        "check.crcs": True,
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
        say(f"{numbered(seen, 'record')} of {arguments.topic} on {alias}{committed}.", err=True)
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
        say(f"{message.partition()} {message.offset():>8}  {moment(at)}  {key}  {value}")


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
