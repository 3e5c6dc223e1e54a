"""Verification in the engine: work that members show, audits of it, and the judgement of the accused (V1 to V15)."""
