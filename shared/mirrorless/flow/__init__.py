"""A flow: its settings, and the rules that depend on nothing else."""
