"""Kafka's protocol for whole record batches: connections, requests, and the two ends of a copy."""
