"""Journals: one numbered log of entries for up to 16 neighbouring lanes, and the chains that are kept in it."""
