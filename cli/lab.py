"""`mirrorless lab topics | produce | consume`: the topics of a running lab, and records of one's own."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from cli.args import BadInput, add_deployment, partition
from cli.deployment import DeployedFlows
from cli.lab_state import LabState, read_lab_state
from cli.output import console, print_json, table

ANSWER_SECONDS = 10.0
"""For one answer of a cluster."""

SAY_EVERY_SECONDS = 1.0
"""Between two lines of progress."""

QUIET = {"log_level": 0}

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
    topics.add_argument("--partitions", metavar="N", type=_positive, default=6, help="of the new one (default: 6)")

    produce = commands.add_parser(
        "produce",
        help="write records to a topic, at a rate, from a file, or numbered ones",
        epilog="Example: mirrorless lab produce orders --records 6000 --rate 500",
    )
    produce.add_argument("topic", metavar="TOPIC", help="on the source of the first flow, or on --cluster")
    produce.add_argument("--records", metavar="N", type=_positive, default=1000, help="how many (default: 1000)")
    produce.add_argument("--rate", metavar="N", type=_positive, help="records a second (default: as fast as it goes)")
    produce.add_argument("--size", metavar="BYTES", type=_positive, default=20, help="of a value (default: 20)")
    produce.add_argument("--keys", metavar="N", type=_positive, default=100, help="different ones (default: 100)")
    produce.add_argument("--partition", metavar="P", type=partition, help="all of them there (default: by the key)")
    produce.add_argument("--from", dest="lines", metavar="FILE", help="a record from each line, KEY<tab>VALUE or VALUE")

    consume = commands.add_parser(
        "consume",
        help="read a topic from its beginning, or where a group stands, to its end",
        epilog="Example: mirrorless lab consume us-east.orders --group shop --records 10",
    )
    consume.add_argument("topic", metavar="TOPIC", help="on whichever cluster has it, or on --cluster")
    consume.add_argument("--records", metavar="N", type=_positive, help="how many at most (default: all)")
    consume.add_argument("--group", metavar="GROUP", help="read on where this group stands, and commit")
    consume.add_argument("--follow", action="store_true", help="wait for more at the end, until Ctrl-C")

    for parser, run in ((topics, run_topics), (produce, _run_produce), (consume, _run_consume)):
        parser.add_argument("--cluster", metavar="ALIAS", help="of the lab")
        add_deployment(parser)
        parser.set_defaults(run=run)


def _run_produce(arguments: argparse.Namespace) -> int:
    from cli.lab_records import run_produce  # noqa: PLC0415 -- it builds on this module

    return run_produce(arguments)


def _run_consume(arguments: argparse.Namespace) -> int:
    from cli.lab_records import run_consume  # noqa: PLC0415 -- same

    return run_consume(arguments)


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
        print(f"{name}: {'created' if arguments.create else 'deleted'} on {alias}.")
        return 0
    found = {alias: ends_of(state, alias) for alias in sorted(state.clusters) if arguments.cluster in {None, alias}}
    if arguments.json:
        clusters = {
            alias: {"bootstrap": state.clusters[alias].bootstrap, "topics": topics} for alias, topics in found.items()
        }
        print_json({"clusters": clusters})
        return 0
    for alias, topics in found.items():
        made = table(f"{alias}  {state.clusters[alias].bootstrap}")
        made.add_column("topic")
        made.add_column("partitions", justify="right")
        made.add_column("offsets", justify="right")
        for topic, ends in sorted(topics.items()):
            made.add_row(topic, str(len(ends)), f"{sum(after - first for first, after in ends):,}")
        console().print(made)
    return 0


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
    from mirrorless.settings import ClusterSettings  # noqa: PLC0415 -- same

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


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number: write 1 or more")
    return int(text)
