"""The course of a run on a chain: what witnesses claim in the metadata of their transactions, which nobody checks."""

import base64
import statistics
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, NamedTuple

import msgspec
import trio
from solders.errors import BincodeError
from solders.pubkey import Pubkey
from solders.transaction import VersionedTransaction

from psyche.analysis.series import Series
from psyche.backends.solana.interface.addresses import get_program_id
from psyche.backends.solana.interface.idl import DISCRIMINATOR_BYTES, load_program
from psyche.backends.solana.rpc.client import CONFIRMED, Rpc
from psyche.backends.solana.rpc.replies import reads
from psyche.backends.solana.rpc.transport import RpcRefused
from psyche.core.encoding.bodies import decode_body
from psyche.core.state.messages import WitnessMessage
from psyche.errors import WireError
from psyche.wire.history import Claim, HistoryPoint, read_claim, summarize_claims
from psyche.wire.nursery import open_plain_nursery

PAGE: Final = 1_000  # signatures of one answer
MAX_PAGES: Final = 50
MAX_READ: Final = 256  # transactions of one question, evenly over those that are new
AT_ONCE: Final = 8
KEPT_ROUNDS: Final = 4_000


class _Signature(msgspec.Struct, rename="camel"):
    signature: Annotated[str, msgspec.Meta(max_length=128)]
    err: Any = None
    block_time: int | None = None


class _Transaction(msgspec.Struct):
    transaction: tuple[str, str]


class Said(NamedTuple):
    """A witness's message, and when it was on the chain."""

    unix: int
    message: WitnessMessage
    claim: Claim


_READ_PAGE: Final = reads(list[_Signature], "getSignaturesForAddress")
_READ_TRANSACTION: Final = reads(_Transaction | None, "getTransaction")


@dataclass
class ChainHistory:
    """Reads what is new of a run's transactions each time; one witness of a round is enough for a curve."""

    rpc: Rpc
    account: Pubkey
    _newest: str | None = None
    _rounds: dict[tuple[int, int], list[Said]] = field(default_factory=dict[tuple[int, int], list[Said]])

    async def read(self) -> Series[HistoryPoint]:
        for said in await self._read_transactions(await self._list_new()):
            self._rounds.setdefault((said.message.epoch, said.message.height), []).append(said)
        if len(self._rounds) > KEPT_ROUNDS:
            self._rounds = dict(sorted(self._rounds.items())[::2])
        return build_points(self._rounds)

    async def _list_new(self) -> list[_Signature]:
        found: list[_Signature] = []
        for _ in range(MAX_PAGES):
            config = {"commitment": CONFIRMED, "limit": PAGE}
            config |= {"before": found[-1].signature} if found else {}
            config |= {"until": self._newest} if self._newest else {}
            page = await self.rpc.read(_READ_PAGE, "getSignaturesForAddress", str(self.account), config)
            found += page
            if len(page) < PAGE:
                break
        if found:
            self._newest = found[0].signature
        return [one for one in found if one.err is None]

    async def _read_transactions(self, listed: list[_Signature]) -> list[Said]:
        found: list[Said] = []
        chosen = iter(listed[:: max(1, -(-len(listed) // MAX_READ))])

        async def work() -> None:
            for one in chosen:
                found.extend(await self._read_one(one))

        async with open_plain_nursery() as nursery:
            for _ in range(AT_ONCE):
                nursery.start_soon(work)
        return found

    async def _read_one(self, listed: _Signature) -> list[Said]:
        config = {"encoding": "base64", "commitment": CONFIRMED, "maxSupportedTransactionVersion": 0}
        try:
            reply = await self.rpc.read(_READ_TRANSACTION, "getTransaction", listed.signature, config)
        except RpcRefused:
            return []
        await trio.lowlevel.checkpoint()
        return [] if reply is None else read_witnesses(reply.transaction[0], listed.block_time or 0)


def read_witnesses(text: str, unix: int) -> list[Said]:
    """The witness messages with a claim, of a transaction in base64; of what is no transaction none."""
    try:
        message = VersionedTransaction.from_bytes(base64.b64decode(text, validate=True)).message
        said = [decode_body(WitnessMessage, body) for body in _find_bodies(message)]
    except (ValueError, WireError, BincodeError):
        return []
    return [Said(unix, one, claim) for one in said if (claim := read_claim(one.metadata)) is not None]


def _find_bodies(message: Any) -> Iterator[bytes]:
    kind, program = load_program("coordinator").instructions["witness"], get_program_id("coordinator")
    for one in message.instructions:
        if message.account_keys[one.program_id_index : one.program_id_index + 1] == [program]:
            data = bytes(one.data)
            if data[:DISCRIMINATOR_BYTES] == kind.discriminator:
                yield data[DISCRIMINATOR_BYTES:]


def build_points(rounds: dict[tuple[int, int], list[Said]]) -> Series[HistoryPoint]:
    """A point for each round of which a witness was read.

    The chain counts heights and not steps, and a witness may claim any step: what most of an epoch's say counts.
    """
    starts: defaultdict[int, list[int]] = defaultdict(list)
    for (epoch, height), said in rounds.items():
        starts[epoch] += [one.claim.step - height for one in said]
    first = {epoch: statistics.median_low(found) for epoch, found in starts.items()}
    points: Series[HistoryPoint] = Series()
    before: Said | None = None
    for (epoch, height), said in sorted(rounds.items()):
        heard = statistics.median_low(one.message.heard.bit_count() for one in said)
        last = max(said, key=lambda one: one.unix)
        is_next = before is not None and (before.message.epoch, before.message.height) == (epoch, height - 1)
        points.add(
            HistoryPoint(
                step=max(0, first[epoch] + height + 1), unix=last.unix, members=heard, tokens=0, is_claimed=True,
                epoch=epoch, height=height,
                seconds=float(last.unix - before.unix) if is_next and before is not None else 0.0,
                results=statistics.median_low(one.message.held.bit_count() for one in said),
                **summarize_claims([one.claim for one in said], heard)._asdict(),
            )
        )  # fmt: skip
        before = last
    return points
