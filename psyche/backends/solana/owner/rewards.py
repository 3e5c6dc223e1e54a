"""What members of a run have earned, and how a run with a treasurer pays them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from solders.instruction import Instruction
from solders.pubkey import Pubkey
from solders.token.associated import get_associated_token_address

from psyche.backends.solana.amounts import format_amount, spell_amount
from psyche.backends.solana.interface.accounts import EARNED_POINTS, PARTICIPANT, EarnedPointsData
from psyche.backends.solana.interface.addresses import get_earned_points_address, get_participant_address
from psyche.backends.solana.interface.coordinator import build_collect
from psyche.backends.solana.interface.tokens import build_token_account, read_mint, read_token_account
from psyche.backends.solana.interface.treasurer import (
    ParticipantData,
    TreasurerRun,
    build_participant_claim,
    build_participant_create,
    build_run_withdraw,
    build_top_up,
    compute_owed,
)
from psyche.backends.solana.lookup import FoundRun
from psyche.backends.solana.owner.funds import find_target, find_token_deposit
from psyche.backends.solana.rpc.replies import get_data
from psyche.backends.solana.session import ChainPlan, ChainSession, Step
from psyche.errors import ConfigError
from psyche.telemetry.text import format_number, format_table

EARNED_BYTES: Final = 145
PARTICIPANT_BYTES: Final = 145
RUN_UID_AT: Final = 8 + 1 + 32  # in an account of earned points


@dataclass(frozen=True, slots=True)
class Earner:
    """One member's earnings in points, each of which is a base unit of the token."""

    key: Pubkey
    in_slot: int  # not collected yet
    collected: int | None  # None: it has no account of earned points
    claimed: int | None  # None: it has no record of payments

    @property
    def unpaid(self) -> int:
        return self.in_slot + (self.collected or 0) - (self.claimed or 0)


@dataclass(frozen=True, slots=True)
class Treasury:
    """What a run with a treasurer holds and owes, in base units of its token."""

    run: TreasurerRun
    decimals: int
    held: int
    owed: int

    @property
    def missing(self) -> int:
        return max(0, self.owed - self.held)

    @property
    def surplus(self) -> int:
        return max(0, self.held - self.owed)

    def describe(self, amount: int) -> str:
        return f"{format_amount(amount, self.decimals)} tokens of {self.run.collateral_mint}"


class _Payment(NamedTuple):
    """What collects a member's earnings and pays it."""

    instructions: tuple[Instruction, ...]
    deposit: int  # lamports that come back
    kept: int  # those of the member's token account


async def find_earners(session: ChainSession, found: FoundRun) -> list[Earner]:
    accounts = await session.rpc.find_accounts(EARNED_POINTS, {RUN_UID_AT: found.state.run_uid})
    collected = {read.signer: read.points for read in (EarnedPointsData.read(a.data) for _, a in accounts)}
    slots = {Pubkey(slot.signer): slot.earned for slot in found.state.registry.slots if slot.earned}
    keys = sorted({*collected, *slots}, key=bytes)
    claimed = await _find_claimed(session, found, keys)
    return [Earner(key, slots.get(key, 0), collected.get(key), claimed.get(key)) for key in keys]


async def find_earner(session: ChainSession, found: FoundRun, key: Pubkey) -> Earner:
    address = get_earned_points_address(found.state.run_uid, key)
    data = get_data(EARNED_POINTS, address, await session.rpc.get_account(address))
    points = None if data is None else EarnedPointsData.read(data).points
    in_slot = sum(slot.earned for slot in found.state.registry.slots if slot.signer == bytes(key))
    return Earner(key, in_slot, points, (await _find_claimed(session, found, [key])).get(key))


async def _find_claimed(session: ChainSession, found: FoundRun, keys: Sequence[Pubkey]) -> dict[Pubkey, int]:
    if found.treasurer is None:
        return {}
    addresses = [get_participant_address(found.treasurer.address, key) for key in keys]
    accounts = await session.rpc.get_accounts(addresses)
    return {
        key: ParticipantData.read(data).claimed_earned_points
        for key, address, account in zip(keys, addresses, accounts, strict=True)
        if (data := get_data(PARTICIPANT, address, account)) is not None
    }


async def find_treasury(session: ChainSession, found: FoundRun) -> Treasury:
    run = found.treasurer
    if run is None:
        raise ConfigError(
            f"run {found.state.run_id!r}: has no treasurer, so it pays nobody by itself; a run that pays is created "
            "with --treasurer-collateral-mint"
        )
    mint, tokens = await session.rpc.get_accounts([run.collateral_mint, run.run_collateral])
    if mint is None or tokens is None:
        raise ConfigError(f"run {found.state.run_id!r}: its token accounts are gone")
    decimals = read_mint(mint.owner, mint.data, run.collateral_mint).decimals
    held = read_token_account(tokens.owner, tokens.data).amount
    return Treasury(run, decimals, held, compute_owed(run, found.instance, found.state))


async def plan_settlement(session: ChainSession, found: FoundRun, members: Sequence[Earner]) -> ChainPlan:
    """Plan what must happen before a run can be closed: earnings are collected, and paid from what the run holds."""
    treasury = None if found.treasurer is None else await find_treasury(session, found)
    unpaid = sum(member.unpaid for member in members)
    count = format_number(sum(member.unpaid > 0 for member in members), "member has", "members have")
    says = f"; before that it settles what {count} earned" if unpaid else ""
    if treasury is not None:
        if 0 < treasury.held < unpaid:
            amount = spell_amount(unpaid - treasury.held, treasury.decimals)
            raise ConfigError(
                f"run {found.state.run_id!r}: owes its members more than it holds; pay in what is missing first: "
                f"{session.write_command(f'rewards top-up --collateral-amount {amount}', found.state.run_id)}"
            )
        if unpaid and not treasury.held:
            says = f"; it holds no tokens, so nobody is paid what {count} earned"
    steps: list[Step] = []
    outcome: list[str] = []
    deposit = kept = 0
    for member in members:
        points = member.unpaid if treasury is not None and treasury.held else 0
        if not member.in_slot and not points:
            continue
        payment = await _build_payment(session, found, member, points)
        steps.append(Step(f"earnings of {str(member.key)[:8]}", payment.instructions))
        deposit, kept = deposit + payment.deposit, kept + payment.kept
        if points and treasury is not None:
            outcome.append(f"{treasury.describe(points)} were paid to {member.key}")
    if treasury is not None and treasury.held > unpaid:  # what closing the run returns
        outcome.append(f"{treasury.describe(treasury.held - unpaid)} went back to {session.key}")
    return ChainPlan(says, tuple(steps), deposit, kept_lamports=kept, outcome=tuple(outcome))


async def plan_claim(session: ChainSession, found: FoundRun, member: Earner) -> ChainPlan:
    """Plan the payment of what a member has earned, as far as the run holds it."""
    treasury = await find_treasury(session, found)
    points = min(member.unpaid, treasury.held)
    if not member.unpaid:
        if member.collected:
            raise ConfigError(f"{member.key} has been paid all that it has earned in run {found.state.run_id!r}")
        show = session.write_command("rewards show", found.state.run_id, signed=False)
        raise ConfigError(f"{member.key} has earned nothing in run {found.state.run_id!r}; {show} lists who has")
    if not points:
        missing = spell_amount(treasury.missing, treasury.decimals)
        pay_in = session.write_command(f"rewards top-up --collateral-amount {missing}", found.state.run_id)
        raise ConfigError(
            f"run {found.state.run_id!r}: holds no tokens; its owner, or anybody, must pay in what is missing: {pay_in}"
        )
    payment = await _build_payment(session, found, member, points)
    rest = member.unpaid - points
    says = f"pays {treasury.describe(points)} to {member.key}"
    if rest:
        says += f"; {format_amount(rest, treasury.decimals)} more are owed, and the run does not hold them"
    returns = describe_return(session, is_own=member.key == session.key)
    steps = (Step("claim", payment.instructions),)
    return ChainPlan(says, steps, payment.deposit, returns, is_lasting=True, kept_lamports=payment.kept)


def describe_return(session: ChainSession, *, is_own: bool) -> str:
    """Say how the deposits of payments come back; `is_own`: it is the wallet itself that is paid."""
    says = f"once the run is closed, {session.write_command('rewards close')} gives it back"
    return says if is_own else f"{says}, but that of earnings only as the member runs it with its own wallet"


async def _build_payment(session: ChainSession, found: FoundRun, member: Earner, points: int) -> _Payment:
    instructions: list[Instruction] = []
    deposit = kept = 0
    payer, rpc = session.key, session.rpc
    if member.in_slot:
        instructions.append(build_collect(found.accounts, payer, found.state.run_uid, member.key))
        deposit += 0 if member.collected is not None else await rpc.get_deposit(EARNED_BYTES)
    if points and (run := found.treasurer):
        if member.claimed is None:
            instructions.append(build_participant_create(run, payer, member.key))
            deposit += await rpc.get_deposit(PARTICIPANT_BYTES)
        tokens = get_associated_token_address(member.key, run.collateral_mint)
        if kept := await find_token_deposit(session, member.key, run.collateral_mint):
            instructions.append(build_token_account(payer, member.key, run.collateral_mint))
        instructions.append(build_participant_claim(run, payer, member.key, tokens, points))
    return _Payment(tuple(instructions), deposit, kept)


async def plan_top_up(session: ChainSession, found: FoundRun, treasury: Treasury, amount: int) -> ChainPlan:
    run = treasury.run
    source = get_associated_token_address(session.key, run.collateral_mint)
    account = await session.rpc.get_account(source)
    has = 0 if account is None else read_token_account(account.owner, account.data).amount
    if has < amount:
        raise ConfigError(
            f"wallet {session.key} has {format_amount(has, treasury.decimals)} tokens of {run.collateral_mint} in its "
            f"account {source}, and {format_amount(amount, treasury.decimals)} are to be paid in"
        )
    says = f"pays {treasury.describe(amount)} into run {found.state.run_id!r}, for its members"
    return ChainPlan(says, (Step("top-up", (build_top_up(run, session.key, source, amount),)),), is_lasting=True)


async def plan_withdraw(
    session: ChainSession, found: FoundRun, treasury: Treasury, amount: int | None, to: Pubkey
) -> ChainPlan:
    """Plan the return of tokens that a run does not owe to a wallet or a token account; `amount` None: all."""
    found.check_owner(session.key)
    taken = treasury.surplus if amount is None else amount
    if not 0 < taken <= treasury.surplus:
        held, owed, most = (
            format_amount(n, treasury.decimals) for n in (treasury.held, treasury.owed, treasury.surplus)
        )
        raise ConfigError(
            f"run {found.state.run_id!r}: holds {held} tokens and owes its members {owed}, so {most} can be withdrawn"
        )
    target = await find_target(session, to, treasury.run.collateral_mint)
    withdraw = build_run_withdraw(treasury.run, target.account, taken)
    says = f"takes {treasury.describe(taken)} out of run {found.state.run_id!r}, to {to}"
    steps = (Step("withdraw", (*target.making, withdraw)),)
    return ChainPlan(says, steps, is_lasting=True, kept_lamports=target.deposit_lamports)


async def describe_rewards(session: ChainSession, found: FoundRun) -> dict[str, Any]:
    """Describe a run's rewards as JSON can hold them; amounts are base units."""
    members = await find_earners(session, found)
    plain: dict[str, Any] = {
        "run_id": found.state.run_id,
        "earning_rate": found.state.registry.future_earning_rate,
        "slashing_rate": found.state.registry.future_slashing_rate,
        "treasurer": None,
        "members": [
            {
                "key": str(one.key),
                "earned": one.in_slot + (one.collected or 0),
                "collected": one.collected or 0,
                "paid": one.claimed or 0,
                "unpaid": one.unpaid,
            }
            for one in members
        ],
    }
    if found.treasurer is not None:
        treasury = await find_treasury(session, found)
        rate = found.state.registry.future_earning_rate
        plain["treasurer"] = {
            "index": treasury.run.index,
            "address": str(treasury.run.address),
            "token_account": str(treasury.run.run_collateral),
            "mint": str(treasury.run.collateral_mint),
            "decimals": treasury.decimals,
            "held": treasury.held,
            "owed": treasury.owed,
            "missing": treasury.missing,
            "surplus": treasury.surplus,
            "epochs_funded": treasury.surplus // rate if rate else None,
        }
    return plain


def format_rewards(plain: dict[str, Any]) -> str:
    """Lay out what `describe_rewards` says as lines for people."""
    treasurer, decimals = plain["treasurer"], 0
    lines = [f"run {plain['run_id']!r} has no treasurer: these are points, which its owner pays as agreed"]
    if treasurer is not None:
        decimals = treasurer["decimals"]
        held, owed, missing = (format_amount(treasurer[key], decimals) for key in ("held", "owed", "missing"))
        lines = [f"run {plain['run_id']!r} pays in {treasurer['mint']}", f"holds {held}, owes {owed}, lacks {missing}"]
    lines.append(f"each epoch from now on pays {format_amount(plain['earning_rate'], decimals)}")
    rows = [
        (one["key"], *(format_amount(one[key], decimals) for key in ("earned", "paid", "unpaid")))
        for one in plain["members"]
    ]
    table = format_table(("member", "earned", "paid", "unpaid"), rows, left=1) if rows else "nobody has earned anything"
    return "\n".join([*lines, table])
