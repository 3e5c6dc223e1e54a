"""What a run will do, found by playing it: `psyche simulate`.

This package has the question, its play, the report, and suggestions for the owner. Simulated worlds and machines
belong to `sim`; accounts that can be made from real runs' event logs too belong to `analysis`.
"""
