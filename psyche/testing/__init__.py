"""The small test kit of the package: configurations, a dummy trainer and a local run.

Kits that only the project's own tests need are in `tests/kits`.
"""
