"""What is to be placed and on what: the fleet, its networks, the candidates and their coefficients."""
