"""A local AWS from real parts, to run and to break Mirrorless on one machine."""
