"""The record of a run as plain data: the state, its enumerations and limits, messages and errors.

This package also holds queries on a state. Transitions are in `psyche.core.rules`, bytes in `psyche.core.encoding`.
"""
