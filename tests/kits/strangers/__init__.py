"""Programs that are not of this project, for tests of those who write them."""
