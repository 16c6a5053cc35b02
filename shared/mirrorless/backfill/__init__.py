"""Backfill: a topic's history, brought to the target as the forwarder would have, and handed over to it."""
