"""Checks that each trainer is told the same outcome of its own results that its client has decided (R8)."""

from psyche.sim.invariants.views import Check, ClientView


class Outcomes:
    """Follows what clients decide about their own results, and what they tell their trainers.

    Args:
        check: notes a violation if its condition does not hold.
    """

    def __init__(self, check: Check) -> None:
        self._check = check
        self._decided: dict[tuple[str, int, int, int], bool] = {}  # by name, life, epoch, height: is it applied

    def note(self, host: ClientView, epoch: int, height: int, *, applied: bool) -> None:
        self._decided[host.name, host.lives, epoch, height] = applied

    def check_told(self, host: ClientView, life: int, epoch: int, height: int, applied: bool) -> None:
        """A trainer is told an outcome: it is the decided one, or "not applied" if its client could not decide."""
        if not host.is_honest or not host.is_living(life):
            return  # a killed process's log is lost
        expected = self._decided.get((host.name, life, epoch, height), False)
        self._check(
            applied is expected, "R8", f"{host.name}'s result of round {(epoch, height)}: applied {expected}",
            f"the trainer is told {applied}",
        )  # fmt: skip
