"""What compiled loops are made of: vectors of numbers, the DCT in small steps, the choice of the largest."""
