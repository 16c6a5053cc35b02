"""The care of a Spark worker before each of its tasks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

_IN_A_WORKER = """
import gc, importlib, sys
from zipimport import zipimporter
from spark.jobs.lane_tasks import make_worker_light
sys.path.insert(0, sys.argv[1])
import inside
assert any(isinstance(each, zipimporter) for each in sys.path_importer_cache.values())
make_worker_light()
assert not any(isinstance(each, zipimporter) for each in sys.path_importer_cache.values())
import later
first = gc.get_freeze_count()
assert first > 10_000
made = [[] for _ in range(1_000)]
make_worker_light()
assert gc.get_freeze_count() <= first
"""


def test_a_worker_reads_no_archive_anew_and_collects_only_what_its_tasks_made(tmp_path: Path) -> None:
    archive = tmp_path / "modules.zip"
    with ZipFile(archive, "w") as modules:
        modules.writestr("inside.py", "")
        modules.writestr("later.py", "")
    subprocess.run([sys.executable, "-c", _IN_A_WORKER, str(archive)], check=True)
