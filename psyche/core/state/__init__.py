"""What a run's record holds, as plain data: the state, its enumerations and limits, messages and errors.

Also what can be read off a state without changing it. What changes a state stands in `rules`, its bytes in `encoding`.
"""
