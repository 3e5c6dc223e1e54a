"""Weights between disk, trainer and peers: loading, healing, the replay store, serving, sharing.

This package finds, checks and passes on snapshots, tensors and decided sets. Which weights are the right ones is
decided in `client.engine`; the arithmetic is the trainer's.
"""
