"""What follows from a round's seed: who is elected and who trains what; and what witnesses report it by."""
