"""Backfill: the copy of a topic's history to the target, and the handover of its lanes to the forwarder."""
