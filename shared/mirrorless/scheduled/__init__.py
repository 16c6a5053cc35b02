"""How a scheduled function runs: what it is told, what it keeps, and when its tasks are due."""
