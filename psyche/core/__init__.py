"""The protocol: a pure state machine that knows everything about a training run and does nothing by itself."""
