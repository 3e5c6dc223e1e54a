"""The participant as a pure object: events in, actions out (`round_engine.RoundEngine`).

This package makes the decisions: which results are accepted, when a round's work is done, what state the weights are
in. Code that waits, reads a clock, or touches files, the model or the network belongs in `client.runtime`.
"""
