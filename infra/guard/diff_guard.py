"""The guard's command: compares two deployments offline and refuses replaced tables and mappings.

    python -m infra.guard.diff_guard OLD NEW                     folders with *.template.json, or configuration files
    python -m infra.guard.diff_guard OLD NEW --accept LOGICAL_ID go on knowingly

What is deployed: `aws cloudformation get-template --stack-name S --query TemplateBody > OLD/S.template.json`. Needs no
AWS, no network and no git. Exit codes: 0 nothing is refused; 1 something is; 2 bad input.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from infra.guard.change_rules import findings
from infra.guard.templates import Templates, watched
from infra.guard.verdict import ChangeFinding, accepted, check_accepted
from mirrorless.errors import ConfigurationError, MirrorlessError
from mirrorless.reports.format import visible_lines

SUFFIX: Final = ".template.json"
REFUSED: Final = 1
BAD_INPUT: Final = 2

_REPOSITORY: Final = Path(__file__).parent.parent.parent


def templates_of(given: Path) -> Templates:
    """The templates in a folder, or those of a configuration.

    Raises:
        ConfigurationError: there are none, one is not JSON, or the configuration is not valid.
    """
    if given.is_file():
        return synthesized(given)
    found = {}
    for path in sorted(given.glob(f"*{SUFFIX}")):
        try:
            found[path.name.removesuffix(SUFFIX)] = json.loads(path.read_text())
        except ValueError as exc:
            raise ConfigurationError(f"not JSON: {exc}", where=str(path), hint="download it as JSON") from exc
    if not found and not (given / "manifest.json").is_file():  # an app without stacks: no flow is enabled
        hint = f"name a folder with *{SUFFIX}, or a configuration file"
        raise ConfigurationError("there are no templates", where=str(given), hint=hint)
    return found


def synthesized(config: Path) -> Templates:
    """The templates of a configuration, without anything built: what a function runs changes no table.

    Raises:
        ConfigurationError: the configuration is not valid.
    """
    from infra.app import app_of  # noqa: PLC0415 -- starts Node, which a comparison of folders needs not
    from infra.packaging.assets import HOLLOW  # noqa: PLC0415 -- same

    context = json.loads((_REPOSITORY / "cdk.json").read_text())["context"] | {HOLLOW: True}
    with TemporaryDirectory() as folder:
        app_of(config, outdir=Path(folder), context=context).synth()
        return templates_of(Path(folder))


def report(found: Sequence[ChangeFinding], old: Templates, new: Templates) -> str:
    """The findings for people."""
    kept = {key for key in watched(old) if key[0] in new}
    unchanged = len(kept - {(each.stack, each.id) for each in found})
    counts = {
        "refused": sum(each.refused for each in found),
        "accepted": sum(each.accepted for each in found),
        "noted": sum(not each.refused and not each.accepted for each in found),
    }
    counted = ", ".join(f"{count} {name}" for name, count in counts.items() if count) or "nothing changes"
    return "\n".join([*map(str, found), f"{counted}; {unchanged} resources with state or a position stay as they are"])


def main(argv: Sequence[str] | None = None) -> int:
    """Compare, print, and say by the exit code whether it may be deployed."""
    parser = argparse.ArgumentParser(prog="python -m infra.guard.diff_guard", description=__doc__.splitlines()[0])
    parser.add_argument("old", type=Path, help="what is deployed: a folder of templates, or a configuration")
    parser.add_argument("new", type=Path, help="what would be: the same")
    parser.add_argument("--accept", action="append", default=[], metavar="LOGICAL_ID", help="a refusal that is meant")
    parser.add_argument("--json", action="store_true", help="for machines")
    given = parser.parse_args(argv)
    try:
        old, new = templates_of(given.old), templates_of(given.new)
        found = accepted(findings(old, new), given.accept)
        check_accepted(found, given.accept)
    except MirrorlessError as error:
        print(visible_lines(f"diff-guard: {error}"), file=sys.stderr)
        return BAD_INPUT
    if given.json:
        print(json.dumps({"findings": [each.json() for each in found]}, indent=2))
    else:
        print(report(found, old, new))
    return REFUSED if any(each.refused for each in found) else 0


if __name__ == "__main__":
    sys.exit(main())
