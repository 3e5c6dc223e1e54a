"""The protocol as a pure state machine: it holds the whole state of a training run and performs no I/O."""
