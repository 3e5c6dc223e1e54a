"""The trainer: its engine, the process that runs it, and the supervision of that process.

The trainer uses models, checkpoints and the optimizer of the parent package. `process`, `frames` and `failure` run in
the client, which never loads torch. `engine` does the calls with a `replica` of the model on one device, or with its
`shard` among the ranks of a `group`.
"""
