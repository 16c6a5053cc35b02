"""The command `lab up`: runs flows on this machine until Ctrl-C. Another start on the same data goes on with them."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from lab.addresses import LabAddresses
from lab.cloud import KEYS, PARTITIONS, Lab
from lab.servers.artifacts import DEFAULT_KAFKA, kafka_jars
from lab.state import StateFile
from mirrorless.config.loading import load
from mirrorless.errors import ConfigurationError
from mirrorless.reports.format import visible

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

REPOSITORY = Path(__file__).parent.parent

ADDRESSES = "addresses.json"
DATA = frozenset({ADDRESSES, "lock", "dynamodb", KEYS})
"""What is kept in the folder beside the clusters; logs and settings are of one start."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register `python -m lab up`."""
    parser = subparsers.add_parser("up", help="run the flows of a configuration until Ctrl-C or SIGTERM")
    parser.add_argument("--config", type=Path, default=REPOSITORY / "replication.example.yaml", metavar="FILE")
    parser.add_argument(
        "--state",
        type=Path,
        default=REPOSITORY / ".lab" / "state.json",
        metavar="FILE",
        help="kept up to date, JSON; the data are beside it, and a lab that is started again goes on with them",
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
    parser.add_argument("--fresh", action="store_true", help="delete the data of the lab before")
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

    configuration = load(arguments.config)
    version, by_alias = kafka_versions(arguments.kafka, configuration.clusters)
    folder = data_folder(arguments.state)
    with _locked(folder, arguments.state):
        remains = _clear(folder, fresh=arguments.fresh)
        addresses = LabAddresses.read(folder / ADDRESSES)
        lab = Lab(
            configuration=configuration,
            folder=folder,
            kafka_version=version,
            kafka_versions=by_alias,
            brokers=arguments.brokers,
            addresses=addresses,
            say=say,
        )
        addresses.write(folder / ADDRESSES)
        if remains:
            say(f"going on with the data in {folder} ({', '.join(remains)}); FRESH=1 deletes them")
        if idle := [alias for alias in remains if alias not in lab.clusters]:
            say(f"not started, for no enabled flow needs them: {', '.join(idle)}")
        _run(lab, StateFile(lab, arguments.state), arguments.partitions, stopped)
    return 0


def _run(lab: Lab, state: StateFile, partitions: int, stopped: threading.Event) -> None:
    began = time.monotonic()
    state.start()
    failed = True
    try:
        for phase in (lab.start_servers, lambda: lab.create_topics(partitions), lab.start_flows):
            phase()
            if stopped.is_set():
                break
        else:
            state.ready()
            for cluster in lab.clusters.values():
                say(f"{cluster.alias}  {cluster.bootstrap}")
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
        say(f"logs are in {lab.folder}" if failed else "the data stay; another start goes on with them")


def data_folder(state: Path) -> Path:
    """The folder of the lab with this state file."""
    return state.absolute().with_suffix(".data")


@contextlib.contextmanager
def _locked(folder: Path, state: Path) -> Iterator[None]:
    """Exclusive use of a folder; it ends with the process, however that ends.

    Raises:
        ConfigurationError: the folder cannot be written, or another lab uses it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "lock").open("a")
    except OSError as exc:
        raise ConfigurationError(
            f"the lab's data cannot be kept beside its state file: {exc}",
            where=str(state),
            hint="name a state file, as by STATE=file.json, in a folder that you may write to",
        ) from exc
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            raise ConfigurationError(
                "another lab runs on these data",
                where=str(folder),
                hint="end that one with Ctrl-C, or name another STATE=file.json",
            ) from exc
        yield


def _clear(folder: Path, *, fresh: bool) -> list[str]:
    """Remove what an earlier lab has left behind, and return the clusters whose data stay."""
    clusters = sorted(path.name for path in folder.iterdir() if _holds_a_cluster(path))
    for path in folder.iterdir():
        if path.is_dir() and (fresh or (path.name not in DATA and path.name not in clusters)):
            shutil.rmtree(path)
    if fresh:
        (folder / ADDRESSES).unlink(missing_ok=True)
    return [] if fresh else clusters


def _holds_a_cluster(path: Path) -> bool:
    return (path / "data" / "meta.properties").exists() or (path / "broker-1").is_dir()


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
    print(visible(f"lab: {text}"), file=sys.stderr, flush=True)
