"""The compiled programs on clusters: their ids, their bytes, and the loader that keeps them."""
