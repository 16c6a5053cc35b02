"""Write the golden files anew: `python -m tests.frozen [PART …]`, or `make frozen`."""

from __future__ import annotations

import argparse

from tests.frozen.golden import write
from tests.frozen.parts import PARTS, TEMPLATES


def main() -> None:
    """Write every part, or those that are named."""
    every = PARTS | TEMPLATES
    parser = argparse.ArgumentParser(prog="python -m tests.frozen", description="Write the golden files anew.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(every)}; left out, all")
    given = parser.parse_args().parts
    if unknown := set(given) - set(every):
        parser.error(f"there is no part {', '.join(sorted(unknown))}: {', '.join(every)}")
    for part in given or every:
        print(f"{part}: {write(part, every[part]())} golden files", flush=True)


if __name__ == "__main__":
    main()
