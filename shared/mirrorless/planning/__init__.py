"""The capacity plan of a flow: measured rates, the triggers that cost least, and the load on the target. Pure."""
