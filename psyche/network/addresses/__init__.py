"""Peer addresses: the table a node keeps of them, and how peers exchange them."""
