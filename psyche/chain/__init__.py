"""What Python needs of the programs on a chain.

`instructions` writes messages as the bodies of instructions. `coordinator`, `authorizer` and `treasurer` build the
programs' instructions, from the `parts` that all have. `addresses` finds accounts; `accounts` and `treasury` read them.
`wallet` reads keys, `cluster` which endpoints lead to a chain. All but `instructions` need the extra `solana`.

The programs themselves are in `programs/`; they keep the record by the rules of `psyche.core`.
"""
