"""The operator's command: `mirrorless COMMAND …`, its dispatch and its exit codes.

    0  fine
    1  something needs the operator, or did not answer
    2  bad input: nothing was changed, and the same words will not work later either
    3  a job ended, and found something to look at
    130, 143  ended by Ctrl-C, by SIGTERM

A command is a file with `add_parser(subparsers)` and `run(arguments) -> int`. Only the file of the command that is run
is imported, because start-up is part of the product.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module

from cli.args import BadInput
from cli.deployment import choose_lab, without_credentials
from cli.output import completing, options, picked, print_json, say_error, say_traceback
from mirrorless.errors import ConfigurationError, MirrorlessError, Refused
from mirrorless.flow.naming import CLIENT_LOG_VARIABLE

COMMANDS = {
    "config": "cli.config",
    "audit": "cli.audit",
    "migrate": "cli.migrate",
    "status": "cli.status",
    "translate": "cli.translate",
    "transform": "cli.transform",
    "flow": "cli.pause",
    "lanes": "cli.lanes",
    "losses": "cli.losses",
    "groups": "cli.groups",
    "topics": "cli.topics",
    "plan": "cli.plan",
    "acl": "cli.acl",
    "failover": "cli.failover",
    "failback": "cli.failover",
    "backfill": "cli.jobs.commands",
    "verify": "cli.jobs.commands",
    "reconcile": "cli.jobs.commands",
    "keys": "cli.keys",
    "decrypt": "cli.keys",
    "lab": "cli.lab",
}
"""The module of each command; some have several."""

NEEDS_OPERATOR, BAD_INPUT, INTERRUPTED = 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. A `MirrorlessError` becomes one line or one JSON object, not a traceback."""
    words = list(sys.argv[1:] if argv is None else argv)
    arguments = build_parser(words[:1]).parse_args(words)
    terminated = Terminated()
    if argv is None:  # a process of its own: what the Kafka client has to say would stand between the answers
        os.environ.setdefault(CLIENT_LOG_VARIABLE, "0")
        signal.signal(signal.SIGTERM, terminated)
        sys.excepthook = say_traceback
    lab, config = getattr(arguments, "lab", None), getattr(arguments, "config", None)
    named = options(lab, config) if isinstance(lab, str | None) and arguments.run.__module__ != "cli.config" else ""
    with completing(named):
        code = _run(arguments)
    return 128 + signal.SIGTERM if terminated.seen else code


class Terminated:
    """What becomes of SIGTERM: a command ends as it does by Ctrl-C."""

    seen = False

    def __call__(self, *_: object) -> None:
        """End it. Raises: KeyboardInterrupt."""
        self.seen = True
        raise KeyboardInterrupt


def _run(arguments: argparse.Namespace) -> int:
    try:
        choose_lab(arguments)
        code = int(arguments.run(arguments))
        sys.stdout.flush()
    except MirrorlessError as exc:
        error = without_credentials(exc)
        _report(error, as_json=arguments.json)
        return BAD_INPUT if isinstance(error, BadInput | ConfigurationError | Refused) else NEEDS_OPERATOR
    except BrokenPipeError:
        # `mirrorless losses | head`: the reader has closed the pipe. Python's flush at exit must not fail either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return INTERRUPTED
    return code


def build_parser(first_words: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The parser, with the command that `first_words` name or, where they name none, with all commands."""
    parser = argparse.ArgumentParser(
        prog="mirrorless",
        description="Look at replication flows, plan them, translate offsets, bring lanes back, and run jobs.",
        epilog="Exit codes: 0 fine, 1 something needs you, 2 bad input, 3 a job or a failover found something to look "
        "at, 4 a failover without its source cannot say what was written last. "
        "A first flow, step by step: docs/tutorial.md. All pages: docs/README.md; alarms: docs/how-to/on-call.md.",
    )
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    chosen = [word for word in first_words if word in COMMANDS] or COMMANDS
    for module in dict.fromkeys(COMMANDS[command] for command in chosen):
        import_module(module).add_parser(subparsers)
    return parser


def _report(error: MirrorlessError, *, as_json: bool) -> None:
    if not as_json:
        say_error(error, "mirrorless: ")
        return
    described = {"type": type(error).__name__, **picked(error, "what where hint retriable")}
    print_json({"error": described}, indent=None)


if __name__ == "__main__":
    sys.exit(main())
