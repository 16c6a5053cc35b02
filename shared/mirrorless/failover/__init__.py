"""Failover, failback and drill of a flow: pure decisions, and steps that can each be repeated."""
