"""Imported by the fork server alone: what its trainers need, and that it ends with the host that started it."""

import os

import psyche.modeling.trainer.engine  # noqa: F401 - torch and transformers, for all trainers at once
from psyche.modeling.trainer.child import die_with_parent

die_with_parent(os.getppid())  # by itself it would go on until its last trainer ends
