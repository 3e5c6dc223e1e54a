"""The libp2p node: gossip, sync, blobs and parameter sharing; and its in-memory twin."""
