"""Findings of a whole site: the audit of every rule, and findings that no rule checks."""
