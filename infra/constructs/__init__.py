"""The constructs that stacks are made of."""
