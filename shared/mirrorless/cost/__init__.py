"""The cost of a flow and of jobs by list prices, and the plan that carries a flow's topics at least cost. Pure."""
