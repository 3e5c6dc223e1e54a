"""The event log and its types, metrics, logging, and the status lines that are made of events.

Accounts and pictures of finished runs belong to `psyche.analysis`.
"""
