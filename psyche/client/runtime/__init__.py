"""The trio shell around the round engine (`shell.Shell`): it executes actions and reports events to the engine.

This package has the code that waits, reads the clock, or touches files, the trainer, data or the network.
`client.engine` decides what to do next and which messages are accepted.
"""
