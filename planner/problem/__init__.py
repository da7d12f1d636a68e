"""The planning problem: the fleet, its networks, the candidates and their coefficients."""
