"""`mirrorless migrate …`: coming from MirrorMaker 2.

`migrate config FILE…` writes a configuration of it as replication.yaml, and says what became of each key.
"""

from __future__ import annotations

import argparse
import urllib.error
import urllib.parse
import urllib.request
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli import give_back, take_over
from cli.args import BadInput, write_new
from cli.output import picked, print_json, say
from mirrorless.errors import Retriable

if TYPE_CHECKING:
    from mirrorless.config import Problem
    from mirrorless.migration.answers import Conversion, Outcome


_ANSWER_SECONDS = 30


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands below `migrate`."""
    migrate = subparsers.add_parser("migrate", help="come from MirrorMaker 2, and go back to it")
    commands = migrate.add_subparsers(required=True, metavar="COMMAND")
    config = commands.add_parser(
        "config",
        help="write a configuration of MirrorMaker 2 as replication.yaml, and say what became of each key",
        epilog="Example: mirrorless migrate config connect-mirror-maker.properties --write replication.yaml",
    )
    config.add_argument(
        "files",
        metavar="FILE",
        nargs="+",
        help="connect-mirror-maker.properties, connectors as JSON, a KafkaMirrorMaker2 of Strimzi, a Replicator's "
        "properties; or the address of a Connect cluster, http://…",
    )
    config.add_argument("--write", metavar="FILE", help="write to a new file (default: the standard output)")
    config.add_argument("--json", action="store_true", help="answer in JSON, for programs")
    config.set_defaults(run=run)
    take_over.add_commands(commands)
    give_back.add_command(commands)


def run(arguments: argparse.Namespace) -> int:
    """Convert. Exit code 0: it can be deployed. Exit code 1: the summary says what the operator must write."""
    from infra.validation import validated  # noqa: PLC0415 -- pydantic would slow every other command down
    from mirrorless.config import InvalidConfiguration  # noqa: PLC0415 -- same
    from mirrorless.migration.conversion import configuration_text, conversion_of  # noqa: PLC0415 -- same
    from mirrorless.migration.reading import read_mirrors  # noqa: PLC0415 -- same

    short = Counter(Path(name).name for name in arguments.files)
    files = {Path(name).name if short[Path(name).name] == 1 else name: _read(name) for name in arguments.files}
    made = conversion_of(*read_mirrors(files))
    text = configuration_text(made)
    if arguments.write:
        write_new(arguments.write, text.encode())
    problems: tuple[Problem, ...] = ()
    try:
        validated(text)
    except InvalidConfiguration as exc:
        problems = exc.problems
    if arguments.json:
        print_json(_answer(made, text, problems))
    else:
        if not arguments.write:
            say(*text.splitlines())
        say(*_summary(made, problems, arguments.write), err=True)
    return 1 if problems else 0


def _read(name: str) -> bytes:
    """A file, or what a Connect cluster says of its connectors.

    Raises:
        BadInput: the file cannot be read.
        Retriable: the cluster does not answer.
    """
    if not name.startswith(("http://", "https://")):
        try:
            return Path(name).read_bytes()
        except OSError as exc:
            raise BadInput(f"the file cannot be read: {exc.strerror}", where=name, hint="name another") from exc
    address = urllib.parse.urlsplit(name)
    path = address.path if "/connectors" in address.path else f"{address.path.rstrip('/')}/connectors"
    try:
        with (
            urllib.request.urlopen(  # noqa: S310 -- http or https, as said above
                urllib.parse.urlunsplit((*address[:2], path, "expand=info", "")), timeout=_ANSWER_SECONDS
            ) as answer
        ):
            found: bytes = answer.read()
            return found
    except (OSError, urllib.error.URLError) as exc:
        hint = "save what `/connectors?expand=info` of the Connect cluster answers, and name that file"
        raise Retriable(f"the Connect cluster does not answer: {exc}", where=address.netloc, hint=hint) from exc


_WORDS: dict[Outcome, str] = {
    "kept": "stay, or have a counterpart",
    "blank": "belong into secrets",
    "instead": "have none: the comments say what there is instead",
    "ignored": "were ignored by MirrorMaker, too",
}


def _summary(made: Conversion, problems: tuple[Problem, ...], file: str | None) -> list[str]:
    counts = Counter(each.outcome for each in made.answers.values())
    lines = [f"{len(made.given)} keys:"]
    lines += [f"  {counts[outcome]:>4} {words}" for outcome, words in _WORDS.items() if counts[outcome]]
    lines += [f"note: {each}" for each in made.notes]
    place = file or "replication.yaml"
    if problems:
        lines += [
            f"to fill in or decide, as `mirrorless config check {place}` says:",
            *(f"  {each}" for each in problems),
        ]
    else:
        lines.append(f"{place} is valid")
    return lines


def _answer(made: Conversion, text: str, problems: tuple[Problem, ...]) -> dict[str, Any]:
    return {
        "configuration": text,
        "keys": [picked(each, "file key") | picked(made.answers[each], "outcome why") for each in made.given],
        "notes": made.notes,
        "problems": [{"field": each.where, "problem": each.what, **picked(each, "line hint")} for each in problems],
    }
