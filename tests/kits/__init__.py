"""Test kits shared by several folders; each file says what it is for. Users of the package have `psyche.testing`."""
