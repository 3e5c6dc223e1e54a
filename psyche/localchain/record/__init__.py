"""What a chain does to runs, recorded instruction by instruction, and carried out once more by core."""
