"""Write docs/reference/cost.md anew: `python -m infra.cost [FOLDER]`."""

from __future__ import annotations

import sys
from pathlib import Path

from infra.cost.page import cost_page


def main(folder: Path) -> None:
    """Write the page into a folder."""
    (folder / "cost.md").write_text(cost_page(), encoding="utf-8")
    print(f"wrote {folder / 'cost.md'}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("docs/reference"))
