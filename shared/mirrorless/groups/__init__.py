"""Consumer groups, there and back: whose offsets go along, and where to."""
