"""The commands `backfill`, `verify` and `reconcile`, and the platforms that run their jobs."""
