"""Local steps: what members exchange after several steps of their own, and how it is applied exactly.

The plan, the chunks and the coding of payloads are those of DisTrO; there is no transform.
"""
