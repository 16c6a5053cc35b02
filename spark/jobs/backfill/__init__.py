"""The backfill job: its plan, the lanes that it takes, the survey of an archive."""
