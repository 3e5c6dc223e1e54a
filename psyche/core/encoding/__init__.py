"""Binary encodings: fixed layouts, each described once for reading and for writing, and canonical lists.

`fields` and `records` provide the building blocks; `tables` describes the account, `header` a result's header,
`gossip` the signed messages. `psyche.core.state` documents what the values mean.
"""
