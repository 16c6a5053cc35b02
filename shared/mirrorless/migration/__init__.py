"""Replication that others keep, brought into a configuration: MirrorMaker 2 in its forms, and Confluent Replicator."""
