"""The command `lab up`: runs flows on this machine until Ctrl-C."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from lab.cloud import PARTITIONS, Lab
from lab.servers.artifacts import DEFAULT_KAFKA, kafka_jars
from lab.state import StateFile
from mirrorless.config.loading import load
from mirrorless.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

REPOSITORY = Path(__file__).parent.parent


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register `python -m lab up`."""
    parser = subparsers.add_parser("up", help="run the flows of a configuration until Ctrl-C or SIGTERM")
    parser.add_argument("--config", type=Path, default=REPOSITORY / "replication.example.yaml", metavar="FILE")
    parser.add_argument(
        "--state", type=Path, default=REPOSITORY / ".lab" / "state.json", metavar="FILE", help="kept up to date, JSON"
    )
    parser.add_argument(
        "--kafka",
        action="append",
        default=[],
        metavar="[ALIAS=]VERSION",
        help="of all clusters, or of one; may be repeated",
    )
    parser.add_argument(
        "--partitions", type=_positive, default=PARTITIONS, metavar="N", help="of topics that the lab has to create"
    )
    parser.add_argument(
        "--brokers", type=_positive, default=1, metavar="N", help="of each cluster; 3 and more replicate their topics"
    )
    parser.add_argument("--keep", action="store_true", help="keep the data folders after a clean stop")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Start everything, wait for a signal, stop everything.

    Raises:
        ConfigurationError: the configuration, the version or the state file cannot be used. Nothing was started.
        MirrorlessError: something did not start. Everything is stopped again, and its logs are kept.
    """
    stopped = threading.Event()

    def on_signal(_: int, __: FrameType | None) -> None:
        stopped.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)

    began = time.monotonic()
    folder = REPOSITORY / ".lab" / f"up-{os.getpid()}"
    configuration = load(arguments.config)
    version, by_alias = kafka_versions(arguments.kafka, configuration.clusters)
    lab = Lab(
        configuration=configuration,
        folder=folder,
        kafka_version=version,
        kafka_versions=by_alias,
        brokers=arguments.brokers,
        say=say,
    )
    state = StateFile(lab, arguments.state)
    try:
        state.start()
    except ConfigurationError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    failed = True
    try:
        for phase in (lab.start_servers, lambda: lab.create_topics(arguments.partitions), lab.start_flows):
            phase()
            if stopped.is_set():
                break
        else:
            state.ready()
            for mapping in lab.flow_mappings:
                say(f"{mapping.flow}  {mapping.topic}  group {mapping.group_id}")
            say(f"records flow after {time.monotonic() - began:.0f} s; state in {state.path}; Ctrl-C ends it")
            stopped.wait()
        failed = False
    finally:
        say("stopping")
        state.not_ready()
        lab.stop()
        state.stop()
        if failed:
            say(f"logs are kept in {folder}")
        elif not arguments.keep:
            shutil.rmtree(folder, ignore_errors=True)
    return 0


def kafka_versions(given: Iterable[str], aliases: Collection[str]) -> tuple[str, dict[str, str]]:
    """The version of all clusters, and those of single ones by alias; their jars are there then.

    Args:
        given: each `VERSION` or `ALIAS=VERSION`.
        aliases: the configuration's.

    Raises:
        ConfigurationError: no such cluster, or no version for the lab.
    """
    found = {"": os.environ.get("KAFKA") or DEFAULT_KAFKA}
    for text in given:
        alias, _, version = text.rpartition("=")
        if alias and alias not in aliases:
            raise ConfigurationError(f"no cluster {alias!r}; there are {', '.join(sorted(aliases))}", where="--kafka")
        found[alias] = version
    try:
        for version in set(found.values()):
            kafka_jars(version)
    except ValueError as exc:
        raise ConfigurationError(str(exc), where="--kafka") from exc
    return found.pop(""), found


def _positive(text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number: write 1 or more")
    return number


def say(text: str) -> None:
    """One line for whoever watches, at once."""
    print(f"lab: {text}", file=sys.stderr, flush=True)
