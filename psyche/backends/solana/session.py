"""What a person does on a chain: says first what it will do and cost, then sends its transactions one by one."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from solders.hash import Hash
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.message import Message
from solders.pubkey import Pubkey

from psyche.backends.solana.amounts import LAMPORTS_PER_SIGNATURE, SOL_DECIMALS, format_sol, spell_amount
from psyche.backends.solana.interface.events import ChainEvent
from psyche.backends.solana.interface.failures import WalletEmpty
from psyche.backends.solana.programs.check import check_programs
from psyche.backends.solana.programs.vouching import Vouching, choose_programs
from psyche.backends.solana.rpc.client import Rpc
from psyche.backends.solana.rpc.sender import Confirmed, TransactionSender
from psyche.backends.solana.rpc.transaction import TRANSACTION_BYTES, FeePolicy
from psyche.core.state.limits import SIGNATURE_BYTES
from psyche.errors import BackendError, ConfigError

BUDGET_BYTES: Final = 32 + 8 + 8 + 12  # the compute-budget program, and the three limits that a sender adds


@dataclass(frozen=True, slots=True)
class Step:
    """Instructions of one transaction, and what it does in a few words."""

    title: str
    instructions: tuple[Instruction, ...]


def count_signatures(instructions: Sequence[Instruction], payer: Pubkey) -> int:
    signers = {account.pubkey for one in instructions for account in one.accounts if account.is_signer}
    return len(signers | {payer})


def fits(instructions: Sequence[Instruction], payer: Pubkey) -> bool:
    message = bytes(Message.new_with_blockhash(list(instructions), payer, Hash.default()))
    signatures = 1 + SIGNATURE_BYTES * count_signatures(instructions, payer)
    return signatures + len(message) + BUDGET_BYTES <= TRANSACTION_BYTES


def pack_steps(steps: Sequence[Step], payer: Pubkey) -> list[Step]:
    """Join steps that fit into one transaction; each step stays whole, and all stay in their order."""
    packed: list[Step] = []
    for step in steps:
        joined = (*packed[-1].instructions, *step.instructions) if packed else step.instructions
        if packed and fits(joined, payer):
            packed[-1] = Step(f"{packed[-1].title}, {step.title}", joined)
        else:
            packed.append(step)
    return packed


class NoRun(BackendError): ...


@dataclass(frozen=True, slots=True)
class ChainPlan:
    """A change of what is on the chain."""

    says: str  # what it does, a sentence for people
    steps: tuple[Step, ...]  # what to send, in this order; some may share a transaction
    deposit_lamports: int = 0  # what the wallet deposits in new accounts
    returns: str = ""  # who gets the deposit back, and when
    signers: tuple[Keypair, ...] = ()  # keys that sign beside the wallet, where a step needs them
    is_lasting: bool = False  # whether to wait until the chain cannot take it back any more
    kept_lamports: int = 0  # what it deposits in token accounts, whose owners keep it
    outcome: tuple[str, ...] = ()  # what it has done once it is carried out, for people


@dataclass(frozen=True, slots=True)
class Quote:
    """What a plan costs, for the person who pays; all but `transactions` in lamports."""

    plan: ChainPlan
    transactions: int
    fee: int  # for the signatures
    wallet: Pubkey
    balance: int
    priority: int  # at most, for being early in each transaction while the chain is busy
    reserve: int = 0  # that every wallet must keep

    @property
    def needed(self) -> int:
        return self.fee + self.plan.deposit_lamports + self.plan.kept_lamports + self.reserve

    def describe(self) -> str:
        plan, count = self.plan, self.transactions
        lines = [plan.says, f"costs {format_sol(self.fee)} for {count} transaction{'s' * (count != 1)}"]
        if plan.kept_lamports:
            lines[1] += f", {format_sol(plan.kept_lamports)} for token accounts, which stay with their owners"
        if plan.deposit_lamports:
            lines[1] += f", and a deposit of {format_sol(plan.deposit_lamports)}; {plan.returns}"
        if self.priority:
            lines.append(
                f"up to {format_sol(self.priority * count)} more while the chain is busy: {self.priority:,} lamports a "
                "transaction (--max-priority-fee)"
            )
        return "\n".join([*lines, f"wallet {self.wallet} pays and has {format_sol(self.balance)}"])


Approve = Callable[[Quote], None]  # raises if the person does not want it


class CommandWriter(NamedTuple):
    """Options with which further commands reach the same chain and wallet, as a shell reads them."""

    chain: str = ""
    wallet: str = ""

    def write(self, command: str, run_id: str = "", *, signed: bool = True) -> str:
        """Write a command that can be run as it is printed; `signed`: this wallet signs."""
        run = f"--run-id {shlex.quote(run_id)}" if run_id else ""
        words = (f"psyche {command}", run, self.chain, self.wallet if signed else "")
        return " ".join(word for word in words if word)


@dataclass(frozen=True)
class ChainSession:
    """One person at a chain."""

    rpc: Rpc
    wallet: Keypair | None  # signs and pays; None: the person only reads
    approve: Approve
    say: Callable[[str], None] = field(default=lambda _text: None)  # is told of progress
    writer: CommandWriter = CommandWriter()  # completes the commands that messages name
    vouching: Vouching | None = None  # the chain's programs; None: those of a local chain
    fees: FeePolicy = FeePolicy()

    def write_command(self, command: str, run_id: str = "", *, signed: bool = True) -> str:
        return f"`{self.writer.write(command, run_id, signed=signed)}`"

    @property
    def key(self) -> Pubkey:
        if self.wallet is None:
            raise ConfigError("no wallet: name its file with --wallet-private-key-path FILE")
        return self.wallet.pubkey()

    async def carry_out(self, plan: ChainPlan, *, is_asked: bool = True) -> Confirmed | None:
        """Say what a plan does and costs, and send it.

        Return where its last transaction landed, with the events of all; None without any transaction.

        Raises:
            WalletEmpty: the wallet has less than that; nothing was sent.
            CoordinatorError, TransactionFailed: a program refuses; what was sent before stays, and is told.
        """
        steps = pack_steps(plan.steps, self.key)
        if not steps:
            return None
        fee = sum(count_signatures(step.instructions, self.key) for step in steps) * LAMPORTS_PER_SIGNATURE
        balance, reserve = await self.rpc.get_balance(self.key), await self.rpc.get_deposit(0)
        quote = Quote(plan, len(steps), fee, self.key, balance, self.fees.max_lamports, reserve)
        self.ask(quote, is_asked=is_asked)
        return await self._send(plan, steps)

    def ask(self, quote: Quote, *, is_asked: bool = True) -> None:
        """Show what a change does and costs; raise if the person does not want it, or cannot pay for it."""
        if is_asked:
            self.approve(quote)
        missing = quote.needed - quote.balance
        if missing > 0:
            airdrop = self.write_command(f"dev airdrop --amount {spell_amount(missing, SOL_DECIMALS)}")
            raise WalletEmpty(
                f"wallet {quote.wallet} has {format_sol(quote.balance)}, and this takes {format_sol(quote.needed)}, "
                f"with what a wallet must keep; nothing was sent. Send it at least {format_sol(missing)} (on a local "
                f"chain, devnet or testnet {airdrop} does), or check --rpc and the wallet"
            )

    async def _send(self, plan: ChainPlan, steps: Sequence[Step]) -> Confirmed | None:
        assert self.wallet is not None, "carry_out has asked for its key"
        sender = TransactionSender(self.rpc, self.wallet, self.fees)
        landed: Confirmed | None = None
        events: list[ChainEvent] = []
        for number, step in enumerate(steps, 1):
            needed = {account.pubkey for one in step.instructions for account in one.accounts if account.is_signer}
            signers = [key for key in plan.signers if key.pubkey() in needed]
            if len(steps) > 1:
                self.say(f"transaction {number} of {len(steps)}: {step.title}")
            min_slot = landed.slot if landed else None
            landed = await sender.send(step.instructions, signers, finalized=plan.is_lasting, min_slot=min_slot)
            events += landed.events
        return replace(landed, events=tuple(events)) if landed else None

    async def check_programs(self) -> str:
        return await check_programs(self.rpc, self.vouching or choose_programs("", None))
