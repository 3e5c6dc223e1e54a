"""Small runs, completely: every order of inputs that a few members, the clock and the owner can make.

    PYTHONPATH=tests .venv/bin/python -m model_checker --members 3 --world liar

A *world* (`worlds`) fixes the members, the configuration and the inputs that exist. The search
(`search`) goes through all states that can be reached, breadth first, and checks every state and every
step (`invariants`). What it finds it reports with the shortest sequence of inputs that leads there.

States that cannot be told apart are visited once; `forms` says which those are and why, and
`Search(recheck_every=...)` tests it: two states of one form must lead to the same forms.
"""
