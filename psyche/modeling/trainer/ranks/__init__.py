"""One trainer on several devices: its ranks, the model divided among them, and each one's part of every call.

What a call means stands in the engine; which rank has which chunks of a tensor in `modeling.distro.layout`.
"""
