"""The programs on a chain: putting them there, and checking which ones are there."""
