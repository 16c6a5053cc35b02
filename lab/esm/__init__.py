"""Kafka event source mappings: pollers, batches, retries, and the API that manages them."""
