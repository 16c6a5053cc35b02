"""The commands `backfill`, `verify` and `reconcile`, and where their runs take place."""
