"""The participant as a pure object: events in, actions out (`round_engine.RoundEngine`).

Here belongs whatever decides: which results are believed, when a round's work is done, how it stands with the weights.
What waits, reads a clock, touches a file, a model or the network is an action, and belongs in `client.runtime`.
"""
