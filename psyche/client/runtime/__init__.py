"""The trio shell around the round engine (`shell.Shell`): it executes actions and reports events to the engine.

Here belongs whatever waits, reads the clock, or touches files, the trainer, data or the network. What to do next, and
whether a message is believed, is decided in `client.engine`.
"""
