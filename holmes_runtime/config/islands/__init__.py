"""Records and messages shared by islands and their controller: rosters, membership, rendezvous."""
