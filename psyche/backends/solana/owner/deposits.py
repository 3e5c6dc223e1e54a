"""Deposits in what a closed run leaves: earned points and records of payments, each closed by whom its program lets."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, TypeVar

from solders.instruction import Instruction
from solders.pubkey import Pubkey

from psyche.backends.solana.amounts import format_sol
from psyche.backends.solana.interface.accounts import (
    EARNED_POINTS,
    PARTICIPANT,
    RUN_STATE,
    TREASURER_RUN,
    AccountKind,
    EarnedPointsData,
)
from psyche.backends.solana.interface.coordinator import build_close_earned_points
from psyche.backends.solana.interface.treasurer import ParticipantData, TreasurerRun, build_participant_close
from psyche.backends.solana.rpc.client import Rpc
from psyche.backends.solana.session import ChainPlan, ChainSession, Step
from psyche.core.encoding.account import decode_state
from psyche.core.state.state import Coordinator
from psyche.errors import WireError
from psyche.telemetry.text import format_number

MEMBER_AT: Final = 73  # in accounts of both kinds, as `payer` is
PAYER_AT: Final = 105


_Kind = TypeVar("_Kind", EarnedPointsData, ParticipantData)


class Deposit(NamedTuple):
    """An account that may be closed now, and how."""

    payer: Pubkey  # gets the lamports
    lamports: int
    close: Instruction


@dataclass(frozen=True, slots=True)
class Deposits:
    """What concerns a wallet of what runs have left."""

    closable: Sequence[Deposit]  # the wallet may close these now
    kept: int  # how many of its accounts belong to runs that are still there
    others: int  # lamports that it paid for earned points of other members, who alone can close them

    def describe_next(self, session: ChainSession) -> Iterator[str]:
        if self.closable:
            lamports = sum(one.lamports for one in self.closable)
            yield (
                f"{format_sol(lamports)} more comes back from records of earnings and payments with "
                f"{session.write_command('rewards close')}"
            )
        yield from self._describe_others(session)

    def describe_rest(self, session: ChainSession) -> Iterator[str]:
        if self.kept:
            stay = format_number(self.kept, "account stays", "accounts stay")
            yield f"{stay} until the run is closed: run this command again then"
        yield from self._describe_others(session)

    def _describe_others(self, session: ChainSession) -> Iterator[str]:
        if not self.others:
            return
        close = session.write_command("rewards close", signed=False)
        yield (
            f"{format_sol(self.others)} that {session.key} deposited for earned points of other members stays: it "
            f"comes back as each of them runs {close} with its own wallet after the run"
        )


async def find_deposits(session: ChainSession) -> Deposits:
    """Find what a wallet earned or paid deposits for, in runs that are there or are closed."""
    wallet, rpc = session.key, session.rpc
    earned = await _find(rpc, EARNED_POINTS, EarnedPointsData.read, wallet)
    records = await _find(rpc, PARTICIPANT, ParticipantData.read, wallet)
    runs = await _find_live(rpc, RUN_STATE, decode_state, {one.coordinator_account for _, one in earned})
    paying = await _find_live(
        rpc, TREASURER_RUN, partial(TreasurerRun.read, Pubkey.default()), {one.run for _, one in records}
    )
    closable: list[Deposit] = []
    kept = others = 0
    for lamports, points in earned:
        if points.signer != wallet:
            others += lamports
        elif runs.get(points.coordinator_account) == points.run_uid:
            kept += 1
        else:
            close = build_close_earned_points(points.coordinator_account, points.run_uid, wallet, points.payer)
            closable.append(Deposit(points.payer, lamports, close))
    for lamports, record in records:
        if paying.get(record.run) == record.run_uid:
            kept += 1
        else:
            close = build_participant_close(record.run, record.user, record.payer)
            closable.append(Deposit(record.payer, lamports, close))
    return Deposits(closable, kept, others)


async def _find(rpc: Rpc, kind: AccountKind, read: Callable[[bytes], _Kind], wallet: Pubkey) -> list[tuple[int, _Kind]]:
    """The accounts of a kind that are about the wallet, or that it paid for, each with its lamports."""
    found = {
        address: (account.lamports, read(account.data))
        for at in (MEMBER_AT, PAYER_AT)
        for address, account in await rpc.find_accounts(kind, {at: bytes(wallet)})
    }
    return [found[address] for address in sorted(found, key=bytes)]


async def _find_live(
    rpc: Rpc, kind: AccountKind, read: Callable[[bytes], Coordinator | TreasurerRun], keys: set[Pubkey]
) -> dict[Pubkey, bytes]:
    """The ids of the runs that these accounts hold now; one of another program holds none."""
    ordered = sorted(keys, key=bytes)
    live: dict[Pubkey, bytes] = {}
    for key, account in zip(ordered, await rpc.get_accounts(ordered), strict=True):
        if account is None or account.owner != kind.owner:
            continue  # the run was closed, and the address may have another use since
        kind.check(key, account.owner, account.data)
        try:
            live[key] = read(account.data).run_uid
        except WireError as error:
            raise WireError(f"account {key}: {error}") from error
    return live


def plan_return(found: Deposits) -> ChainPlan:
    payers: dict[Pubkey, int] = {}
    for one in found.closable:
        payers[one.payer] = payers.get(one.payer, 0) + one.lamports
    shares = ", ".join(f"{format_sol(lamports)} to {payer}" for payer, lamports in payers.items())
    says = (
        f"closes {format_number(len(found.closable), 'account')} of runs that are gone; the deposits go to who paid "
        f"them: {shares}. What these runs still owe you can be proven no longer"
    )
    steps = tuple(Step("close", (one.close,)) for one in found.closable)
    return ChainPlan(says, steps)
