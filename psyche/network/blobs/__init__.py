"""Blobs: large contents named by their hash, served to peers and fetched from them, each chunk checked.

Connections, peers and gossip are handled in the folder above.
"""
