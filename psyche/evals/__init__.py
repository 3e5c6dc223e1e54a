"""Known tasks that say what a model has learned: their tables, documents and scores.

Nothing here loads torch: whoever has the model gets rows of token ids and returns what each choice is worth.
"""
