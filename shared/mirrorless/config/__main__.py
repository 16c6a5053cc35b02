"""Generator of docs/reference/configuration.md and docs/replication.schema.json: `python -m mirrorless.config`."""

from __future__ import annotations

import sys
from pathlib import Path

from mirrorless.config.reference import editor_schema, reference_page

PAGES = {"reference/configuration.md": reference_page, "replication.schema.json": editor_schema}
"""What is generated, by its name in the folder `docs`."""


def main(folder: Path) -> None:
    """Write every generated page into a folder."""
    for name, text_of in PAGES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text_of(), encoding="utf-8")
        print(f"wrote {folder / name}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("docs"))
