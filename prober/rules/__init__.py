"""The audit's rules, one file per subject. A rule is a check of facts with its id, severity, effect and remedy."""
