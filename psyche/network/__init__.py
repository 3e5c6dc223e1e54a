"""The libp2p node of a client: peers, hello, gossip, sync, `blobs` and `addresses`; and its in-memory twin.

What the messages mean belongs to `psyche.core` and `psyche.client`; their formats belong to `psyche.wire`.
"""
