"""Blobs: large contents named by their hash, served to peers and fetched from them, each chunk checked.

What knows of connections, peers or gossip stands in the folder above.
"""
