"""What needs torch: models, checkpoints, snapshots, `distro` (the optimizer), `trainer` (the engine, its process).

Nothing here knows the network or the coordinator; the client's parent process imports none of it.
"""
