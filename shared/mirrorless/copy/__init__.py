"""Pull: topics read by a scheduled function, without event source mappings."""
