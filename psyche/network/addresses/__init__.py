"""Where peers are: what a node knows of addresses, and how peers tell each other."""
