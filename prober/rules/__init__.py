"""The audit's rules, one file a subject. A rule is a pure check of facts with its id, severity, effect and remedy."""
