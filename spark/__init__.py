"""The PySpark jobs: backfill, verify and reconcile; their sessions, plans, tasks and leases."""
