"""The memory of one event is there for the next: what is freed stays with the process."""

from __future__ import annotations

import subprocess
import sys

import pytest

RESIDENT = """
import sys
from mirrorless.adapters.aws.runtime import keep_memory

if sys.argv[1] == "kept":
    assert keep_memory()
blocks = [b"x" * 1_000_000 for _ in range(64)]
del blocks
with open("/proc/self/status") as status:
    print(next(line.split()[1] for line in status if line.startswith("VmRSS")))
"""


@pytest.mark.parametrize(("said", "stays"), [("kept", True), ("given back", False)])
def test_freed_blocks_of_a_megabyte_stay_with_the_process_only_where_that_is_set(said: str, *, stays: bool) -> None:
    done = subprocess.run([sys.executable, "-c", RESIDENT, said], check=True, capture_output=True, text=True)

    assert (int(done.stdout) > 64_000) is stays
