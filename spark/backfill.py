"""EMR Serverless job: backfill. Its one argument is the run's folder, see mirrorless.adapters.jobs.driver."""

from __future__ import annotations

import sys

from mirrorless.adapters.jobs.backfill import backfill
from mirrorless.adapters.jobs.driver import drive

if __name__ == "__main__":
    sys.exit(drive(backfill))
