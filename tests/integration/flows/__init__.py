"""A package, so that its lab is stopped after its last test, not after the session's."""
