"""Places for files, as real as a test can have them, and what goes wrong on the way to them."""
