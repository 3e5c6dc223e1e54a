"""Where a run's record lives, as members and owners reach it.

`port` says what they may ask of any backend, and `target` opens the one that a person names: `tcp` (a server), `solana`
(a chain), or `memory` (this process). What keeps the record is elsewhere: `psyche.server`, and the programs.
"""
