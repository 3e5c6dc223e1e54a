"""Data providers, the tokenizer command, the TCP data server and its client.

Which samples a member trains on follows from the seed of the round (`psyche.core.committee.assignment`).
"""
