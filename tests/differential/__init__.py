"""The rules twice, in Python (`psyche.core`) and in Rust (`programs/rules`): events must do the same to both."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "conformance"))  # events and states in the form of the traces
