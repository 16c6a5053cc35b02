"""Kafka clusters: producers, consumers and admin clients."""
