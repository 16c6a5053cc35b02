"""Comparison of both clusters, record by record and offset by offset."""
