"""Weights on their way: loaded and healed, kept for a replay, given to peers, and put where all can reach them.

Here belongs what finds, checks and hands on snapshots, tensors and the sets behind them. Which weights are the right
ones is decided in `client.engine`; the arithmetic is the trainer's.
"""
