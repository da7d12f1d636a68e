"""Vocabulary of islands and their controller: rosters, membership, rendezvous."""
