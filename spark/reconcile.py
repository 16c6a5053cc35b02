"""EMR Serverless job: reconcile. Its one argument is the run's folder, see mirrorless.adapters.jobs.driver."""

from __future__ import annotations

import sys

from mirrorless.adapters.jobs.driver import drive
from mirrorless.adapters.jobs.reconcile import reconcile

if __name__ == "__main__":
    sys.exit(drive(reconcile))
