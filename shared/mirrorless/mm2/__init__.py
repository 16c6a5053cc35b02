"""Heartbeats, offset syncs and internal records for MirrorMaker 2's own clients and tools."""
