"""Mutation testing."""
