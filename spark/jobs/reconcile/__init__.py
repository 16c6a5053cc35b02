"""The reconcile job: its tasks and its summary."""
