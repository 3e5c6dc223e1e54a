"""Peer addresses: the table a node keeps of them, and how peers exchange them.

The signed record of an address is in `psyche.wire.address_record`; who is dialed when, in `psyche.network.dialing`.
"""
