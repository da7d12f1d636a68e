"""Holmes as an installed package: `holmes.api` from Python, `python -m holmes` from a shell.

A wheel holds the folders beside this one inside it, so that nothing else is put among a site's packages; see setup.py.
"""
