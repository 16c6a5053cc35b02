"""Kafka event source mappings: pollers, batches, retries, destinations, and the API that manages them."""
