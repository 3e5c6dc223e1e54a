"""What tests of several folders share; each file says what it is for. Users of the package have `psyche.testing`."""
