"""The verify job: its tasks, and the latest values of compacted topics."""
