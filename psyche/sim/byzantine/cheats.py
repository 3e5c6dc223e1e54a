"""Members that cheat where others verify: trainers without work, verifiers and jurors that lie (B1 to B4)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import trio

from psyche.core.encoding.header import ResultKind
from psyche.core.encoding.work import SKETCH_VALUES
from psyche.core.state.messages import JudgeChallenge
from psyche.core.state.state import ChallengeState
from psyche.sim.byzantine.program import ByzantineProgram
from psyche.sim.works import Piece, fake
from psyche.wire.crypto import blake3_hash, compute_data_hash
from psyche.wire.trainer import AuditedPiece, AuditedTarget, AuditReply, AuditRequest, AuditTarget

LOOK_S: Final = 0.5


class Lazy(ByzantineProgram):
    """Makes up the pieces that it does not compute: its share of all of them (B1)."""

    def change_works(self, height: int, pieces: list[Piece]) -> list[Piece]:
        return [fake(piece, height * 1_000 + n) if self.is_due() else piece for n, piece in enumerate(pieces)]


class SpoilCalibration(Lazy):
    """Spoils its calibration row, as if its machine were broken, and makes up its share of pieces (B1)."""

    def change_calibration(self, piece: Piece) -> Piece:
        return fake(piece, 0)


class OtherData(ByzantineProgram):
    """Trains on samples of its own choice (B4)."""

    def change_works(self, height: int, pieces: list[Piece]) -> list[Piece]:
        del height
        return [replace(piece, tokens=piece.tokens[::-1] + b"other") if self.is_due() else piece for piece in pieces]


class Stale(ByzantineProgram):
    """Trains at the weights of an earlier round (B1)."""

    def change_works(self, height: int, pieces: list[Piece]) -> list[Piece]:
        del height
        old = blake3_hash(b"weights of another round")
        return [replace(piece, weights=old) for piece in pieces] if self.is_due() else pieces


class Resend(ByzantineProgram):
    """Shows the work of its round before again (B2)."""

    _last: Sequence[Piece] = ()

    def change_works(self, height: int, pieces: list[Piece]) -> list[Piece]:
        del height
        last, self._last = self._last, tuple(pieces)
        return list(last[: len(pieces)]) if len(last) >= len(pieces) and self.is_due() else pieces


class CopyPiece(ByzantineProgram):
    """Computes one piece and shows it for all (B3)."""

    def change_works(self, height: int, pieces: list[Piece]) -> list[Piece]:
        del height
        return [pieces[0]] * len(pieces) if self.is_due() else pieces


class FlipSigns(ByzantineProgram):
    """Does all the work, and turns a tenth of the signs that it sends (B4)."""

    turned = 0.1

    def change_payload(self, payload: bytes) -> bytes:
        return self.host.codec.flip(payload, lambda: self.rng.random() < self.turned) if self.is_due() else payload


class Poison(FlipSigns):
    """Does all the work, and sends the opposite (B4)."""

    turned = 1.0


class LeaveAccused(Lazy):
    """Does no work, and leaves as soon as somebody says so (B1)."""

    async def run(self) -> None:
        while not self._is_accused():  # noqa: ASYNC110 - nobody tells it of new states
            await trio.sleep(LOOK_S)
        self.host.ask_to_end("somebody has noticed")
        await trio.sleep_forever()

    def _is_accused(self) -> bool:
        state = self.host.get_state()
        opened = [one for one in state.challenges if one.state is ChallengeState.OPEN]
        return any(state.registry.slots[one.target].p2p == self.host.key for one in opened)


class AccuseHonest(ByzantineProgram):
    """As a verifier says of everybody that the work is wrong (B18)."""

    def change_audit(self, request: AuditRequest, reply: AuditReply) -> AuditReply:
        del request
        self.told += 1
        targets = tuple(AuditedTarget(pieces=tuple(_invert(p) for p in one.pieces)) for one in reply.targets)
        return AuditReply(targets=targets, seconds=reply.seconds, cancelled=reply.cancelled, refused=reply.refused)


def _invert(piece: AuditedPiece) -> AuditedPiece:
    values = tuple(tuple(-value for value in row) for row in piece.values)
    return AuditedPiece(piece=piece.piece, loss=piece.loss, values=values)


class LazyVerifier(ByzantineProgram):
    """Reports that all is well without computing anything: it repeats what its targets say (B19)."""

    def change_audit(self, request: AuditRequest, reply: AuditReply) -> AuditReply:
        self.told += 1
        targets = tuple(self.repeat(request, one) for one in request.targets)
        return AuditReply(targets=targets, seconds=reply.seconds, cancelled=reply.cancelled, refused=reply.refused)

    def repeat(self, request: AuditRequest, target: AuditTarget) -> AuditedTarget:
        """The values that the member claims; under another seed it has to make them up."""
        claims = self.find_claims(request, target)
        made_up = (0.5,) * SKETCH_VALUES
        pieces = [
            AuditedPiece(piece=piece, loss=2.0, values=(claims.get(piece, made_up), made_up)) for piece in target.pieces
        ]
        return AuditedTarget(pieces=tuple(pieces))

    def find_claims(self, request: AuditRequest, target: AuditTarget) -> dict[int, tuple[float, ...]]:
        record = self.host.find_record(request.height)
        for known in () if record is None else (k for one in record.results.values() for k in one.values()):
            is_it = known.header.data_hash == compute_data_hash(target.tokens)
            if is_it and known.work is not None and known.header.result_kind is ResultKind.TRAINED:
                return {piece: known.work.get_claim(piece) for piece in target.pieces}
        return {}


class SilentVerifier(ByzantineProgram):
    """As a verifier computes and reports nothing (B19)."""

    def change_audit(self, request: AuditRequest, reply: AuditReply) -> AuditReply:
        del request, reply
        self.told += 1
        return AuditReply(targets=(), seconds=0.0, refused="it does not care")


class ShieldFriends(Lazy):
    """Does no work, passes other dishonest members as a verifier, and acquits them as a juror (B9)."""

    def change_audit(self, request: AuditRequest, reply: AuditReply) -> AuditReply:
        claimer = LazyVerifier(self.host, 1.0, self.rng)
        friends = self.find_friends(request)
        targets = tuple(
            claimer.repeat(request, target) if compute_data_hash(target.tokens) in friends else found
            for target, found in zip(request.targets, reply.targets, strict=False)
        )
        return AuditReply(targets=targets, seconds=reply.seconds, cancelled=reply.cancelled, refused=reply.refused)

    def find_friends(self, request: AuditRequest) -> set[bytes]:
        """The hashes of what dishonest members had to train on in that round."""
        record, clients = self.host.find_record(request.height), self.host.get_state().clients
        if record is None:
            return set()
        friends = self.host.get_friends()
        return {
            known.header.data_hash
            for member, results in record.results.items()
            if clients[member].p2p in friends
            for known in results.values()
        }

    def change_judgement(self, message: JudgeChallenge) -> JudgeChallenge:
        state = self.host.get_state()
        challenge = state.challenges[message.challenge]
        if challenge.state is not ChallengeState.OPEN:
            return message
        is_friend = state.registry.slots[challenge.target].p2p in self.host.get_friends()
        return replace(message, guilty=int(not is_friend))


CHEATS: Final[dict[str, type[ByzantineProgram]]] = {  # only where a run is verified do they make a difference
    "lazy": Lazy, "other_data": OtherData, "stale": Stale, "resend": Resend, "copy_piece": CopyPiece,
    "accuse_honest": AccuseHonest, "lazy_verifier": LazyVerifier, "silent_verifier": SilentVerifier,
    "shield_friends": ShieldFriends, "spoil_calibration": SpoilCalibration, "flip_signs": FlipSigns, "poison": Poison,
    "leave_accused": LeaveAccused,
}  # fmt: skip
