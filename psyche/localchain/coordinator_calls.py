"""Instructions of the coordinator program, read back as the messages that they carry."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from solders.pubkey import Pubkey

from psyche.backends.solana.interface.borsh import decode_value
from psyche.backends.solana.interface.idl import DISCRIMINATOR_BYTES, InstructionKind, load_program
from psyche.core.encoding.account import encode_model
from psyche.core.encoding.bodies import decode_body
from psyche.core.encoding.tables import CHECKPOINT, CONFIG, MODEL
from psyche.core.rules.rounds import find_entropy
from psyche.core.state import messages as msg
from psyche.core.state.messages import Message
from psyche.core.state.state import Coordinator

_BY_BODY: Final[dict[str, type[Message]]] = {  # instructions whose body is that of a message
    "withdraw": msg.Withdraw, "leave_run": msg.LeaveRun, "warmup_witness": msg.WarmupWitness,
    "witness": msg.WitnessMessage, "health_check": msg.HealthCheck, "checkpoint": msg.NameCheckpoint,
    "report_equivocation": msg.ReportEquivocation, "set_future_epoch_rates": msg.SetRates,
    "reclaim_slot": msg.ReclaimSlot, "update_client_version": msg.UpdateClientVersion,
    "audit": msg.ReportAudit, "judge": msg.JudgeChallenge,
}  # fmt: skip
_OTHERS: Final = ("init_coordinator", "free_coordinator", "join_run", "tick", "set_paused", "update", "collect")
_HEAD_BYTES: Final = MODEL.size - 3 * CHECKPOINT.size  # of a model: what an update brings
_SOURCE: Final = slice(20, 156)  # the first source of weights in a model


@cache
def _name_calls() -> dict[bytes, tuple[str, int]]:
    """By discriminator: the instruction's name, and the place of the run's account."""
    found: dict[bytes, tuple[str, int]] = {}
    for name in (*_BY_BODY, *_OTHERS):
        kind = _find_kind(name)
        found[kind.discriminator] = name, [use.name for use in kind.accounts].index("coordinator_account")
    return found


def _find_kind(name: str) -> InstructionKind:
    return load_program("coordinator").instructions[name]


@dataclass(frozen=True)
class CoordinatorCall:
    """An instruction of the coordinator program: its data with the discriminator, and the keys of its accounts."""

    data: bytes
    keys: tuple[Pubkey, ...]

    @property
    def name(self) -> str:
        """The name of the instruction; empty if it is none that works on a run's account."""
        return _name_calls().get(self.data[:DISCRIMINATOR_BYTES], ("", 0))[0]

    @property
    def body(self) -> bytes:
        return self.data[DISCRIMINATOR_BYTES:]

    @property
    def account(self) -> Pubkey:
        return self.keys[_name_calls()[self.data[:DISCRIMINATOR_BYTES]][1]]

    def read_arguments(self) -> dict[str, Any]:
        """The arguments by name, as the IDL has them; WireError if the body is not of its form."""
        return decode_value(_find_kind(self.name).arguments, self.body, self.name)

    def read_message(self, state: Coordinator, recorded: Sequence[tuple[int, bytes]]) -> Message:
        """The message, as the program passes it on; `recorded` are the slots that it can read, oldest first.

        Raises:
            WireError: the body is not of its form.
        """
        special: dict[str, Callable[[], Message]] = {
            "tick": lambda: msg.Tick(find_entropy(state, recorded)),
            "join_run": lambda: msg.Join(bytes(self.keys[1]), **self.read_arguments()),
            "set_paused": lambda: msg.Pause() if self.read_arguments()["paused"] else msg.Resume(),
            "update": lambda: decode_body(msg.Update, _complete(state, self.body)),
            "collect": lambda: msg.Collect(((bytes(self.read_arguments()["signer"]), None),)),
        }
        read = special.get(self.name)
        return read() if read is not None else decode_body(_BY_BODY[self.name], self.body)


def _complete(state: Coordinator, body: bytes) -> bytes:
    """An update with a whole model: the further sources of weights stay if the first one stays."""
    tag = 1 + (CONFIG.size if body[0] else 0)
    if not body[tag]:
        return body
    head, rest = body[tag + 1 : tag + 1 + _HEAD_BYTES], body[tag + 1 + _HEAD_BYTES :]
    old = encode_model(state.model)
    spares = old[_HEAD_BYTES:] if head[_SOURCE] == old[_SOURCE] else bytes(MODEL.size - _HEAD_BYTES)
    return body[: tag + 1] + head + spares + rest
