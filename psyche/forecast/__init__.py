"""What a run will do, found by playing it: `psyche simulate`.

Belongs here: a question, its play, its report, and what its owner could change. Does not: worlds and their machines
(`sim`), and what is read from the event logs of real runs as well (`analysis`).
"""
