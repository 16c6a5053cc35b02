"""Write the golden files anew, and add the names of new tests: `python -m tests.frozen [PART …]`, or `make frozen`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping

from tests.frozen import name_list
from tests.frozen.golden import write
from tests.frozen.parts import PARTS, TEMPLATES, Texts


def main() -> None:
    """Write every part, or those that are named."""
    every = _writers()
    parser = argparse.ArgumentParser(prog="python -m tests.frozen", description="Write the golden files anew.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(every)}; left out, all")
    given = parser.parse_args().parts
    if unknown := set(given) - set(every):
        parser.error(f"there is no part {', '.join(sorted(unknown))}: {', '.join(every)}")
    for part in given or every:
        print(f"{part}: {every[part]()}", flush=True)


def _writers() -> Mapping[str, Callable[[], str]]:
    def golden(part: str, texts: Texts) -> Callable[[], str]:
        return lambda: f"{write(part, texts())} golden files"

    files = {part: golden(part, texts) for part, texts in (PARTS | TEMPLATES).items()}
    return files | {"names": lambda: f"{name_list.add_new()} new"}


if __name__ == "__main__":
    main()
