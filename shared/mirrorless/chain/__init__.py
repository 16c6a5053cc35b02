"""Where a lane stands and how it came there: runs, heads, states, losses, and the journals that keep them."""
