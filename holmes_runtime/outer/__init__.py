"""Islands: separate runs that exchange the changes of their parameters from time to time."""
