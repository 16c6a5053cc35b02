"""Offline checks of what a change of configuration or code does to tables, mappings and positions."""
