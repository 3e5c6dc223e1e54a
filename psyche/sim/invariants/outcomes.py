"""Whether each trainer hears of its own results what its client has decided (R8)."""

from psyche.sim.invariants.views import Check, ClientView


class Outcomes:
    """Follows what clients decide of their own results, and what they tell their trainers.

    Args:
        check: notes a violation unless something holds.
    """

    def __init__(self, check: Check) -> None:
        self._check = check
        self._decided: dict[tuple[str, int, int, int], bool] = {}  # by name, life, epoch, height: whether it is in

    def note(self, host: ClientView, epoch: int, height: int, *, applied: bool) -> None:
        """A client decides about its own result."""
        self._decided[host.name, host.lives, epoch, height] = applied

    def check_told(self, host: ClientView, life: int, epoch: int, height: int, applied: bool) -> None:
        """A trainer hears what its client has decided; what the client never could decide was not applied."""
        if not host.is_honest or not host.is_living(life):
            return  # nobody hears the log of a process that was killed
        expected = self._decided.get((host.name, life, epoch, height), False)
        self._check(
            applied is expected, "R8", f"{host.name}'s result of round {(epoch, height)}: applied {expected}",
            f"the trainer is told {applied}",
        )  # fmt: skip
