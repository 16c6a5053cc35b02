"""A flow's topics: discovery, change detection, remote topics, event source mappings, ACLs."""
