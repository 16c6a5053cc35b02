"""The example of a harmless change and that of one that must be refused, each judged as an operator would see it.

    python -m infra.guard.examples

Exit codes: 0 the first may be deployed and the second is refused; 1 the guard decides otherwise; 2 bad input.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from infra.guard import diff_guard

_CHANGES: Final = Path(__file__).parent.parent.parent / "docs" / "examples" / "changes"
EXPECTED: Final = {"harmless": 0, "refused": diff_guard.REFUSED}


def main() -> int:
    """Compare both with what is deployed before, in one process: to start Node costs more than all three templates."""
    for name, expected in EXPECTED.items():
        print(f"before.yaml -> {name}.yaml", flush=True)
        code = diff_guard.main([str(_CHANGES / "before.yaml"), str(_CHANGES / f"{name}.yaml")])
        if code != expected:
            print(f"diff-guard: {name}.yaml ends with exit code {code}, expected is {expected}", file=sys.stderr)
            return code or 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
