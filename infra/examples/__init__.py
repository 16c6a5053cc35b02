"""Stacks that a deployment does not have, to begin with."""
