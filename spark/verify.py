"""EMR Serverless job: verify. Its one argument is the run's folder, see mirrorless.adapters.jobs.driver."""

from __future__ import annotations

import sys

from mirrorless.adapters.jobs.driver import drive
from mirrorless.adapters.jobs.verify import verify

if __name__ == "__main__":
    sys.exit(drive(verify))
