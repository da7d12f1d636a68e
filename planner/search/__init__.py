"""The placement of least closed-form seconds: branch and bound over candidates, and its integer programs."""
