"""The trainer: its engine, the process it runs in, and who watches over that process.

Models, checkpoints and the optimizer, which a trainer uses, stand in the folder above. Only `engine` and what runs it
import torch: `process`, `host`, `hosted_process`, `frames`, `failure` and `watchdog` belong to the client's parent.
"""
