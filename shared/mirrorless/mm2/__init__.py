"""What MirrorMaker 2's own clients and tools read from us."""
