"""The check of every lane: doubts settled, gaps explained, heads renewed."""
