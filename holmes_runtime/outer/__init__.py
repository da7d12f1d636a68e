"""Rounds between islands: where they meet, and what they exchange."""
