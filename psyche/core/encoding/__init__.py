"""Bytes: one description of each fixed layout, from which reading and writing both follow; canonical lists.

`fields` and `records` are the language of descriptions; `tables` describes the account, `header` a result, `gossip`
signed messages. What the numbers mean stands in `state`.
"""
