"""The protocol as a pure state machine: it holds the whole state of a training run and performs no I/O.

`state` is what a run is, `rules` how a message or a tick changes it, `committee` what follows from a round's seed
and decides, `encoding` its bytes. Nothing here reads a clock, draws a random number, or imports more than the
standard library; who hosts the state machine is elsewhere (`psyche.server`).
"""
