"""Holmes as an installed package: `holmes_train.api` from Python, `python -m holmes_train` from a shell.

In a wheel, the other top-level folders lie inside this one, so that a site's packages gain one name only; see setup.py.
"""
