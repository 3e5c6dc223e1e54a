"""The trainer: its engine, the process that runs it, and the supervision of that process.

The trainer uses models, checkpoints and the optimizer of the parent package. Only `engine` and the modules that run it
import torch; `process`, `frames` and `failure` run in the client.
"""
