"""What a trainer shows of its work: sketches of gradients, and openings of its momentum (V3, V5)."""
