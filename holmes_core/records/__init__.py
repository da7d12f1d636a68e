"""The records that stages hand one another, as frozen models and as files."""
