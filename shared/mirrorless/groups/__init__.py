"""Consumer groups in both directions: translated offsets, checkpoints, group offset sync, readiness."""
