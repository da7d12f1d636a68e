"""The placement with the least closed-form seconds: branch and bound over candidates, and its integer programs."""
