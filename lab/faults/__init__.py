"""Planned faults: orders to functions, killed servers, and schedules of both."""
