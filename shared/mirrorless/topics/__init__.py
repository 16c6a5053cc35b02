"""A flow's topics: found, shaped, watched, mapped, and who may read them."""
