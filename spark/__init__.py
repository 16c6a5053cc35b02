"""The PySpark jobs: `backfill`, `verify` and `reconcile` are the entry points, `jobs` what they are made of."""
