"""Putting the three programs on a chain, and taking them away. What was cut off goes on where it stopped."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

import trio
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from psyche.backends.solana.amounts import LAMPORTS_PER_SIGNATURE
from psyche.backends.solana.interface.addresses import SOURCE_IDS, ProgramIds
from psyche.backends.solana.interface.idl import find_file
from psyche.backends.solana.programs import loader
from psyche.backends.solana.programs.check import read_programs
from psyche.backends.solana.programs.vouching import NOBODY, ClusterPrograms, VouchedProgram, read_digests, replace_ids
from psyche.backends.solana.rpc.replies import read_statuses
from psyche.backends.solana.rpc.sender import READ_HEIGHT
from psyche.backends.solana.rpc.transaction import Budget, TransactionDraft
from psyche.backends.solana.session import ChainPlan, ChainSession, Quote, Step
from psyche.backends.solana.wallet import read_wallet, write_wallet
from psyche.errors import BackendError, ConfigError

PART_BYTES: Final = 940  # of a program, in one transaction
WINDOW: Final = 64  # parts that are sent before the chain is asked whether they have landed
PAUSE_S: Final = 0.3  # between them: public endpoints take 40 calls of a method in 10 s
PATIENCE_S: Final = 90.0  # a block hash counts for about 60 s; only a chain that stands still takes longer
READ_BACK_S: Final = 30.0  # an endpoint may be some slots behind
POLL_S: Final = 0.5
WRITE_UNITS: Final = 10_000
MIN_EXTENSION_BYTES: Final = 10_240  # of a program's account, as newer chains want it
MAX_PASSES: Final = 20  # over what a buffer lacks; on a crowded chain each one pays more


class NewProgram(NamedTuple):
    """A program to be deployed. `buffer`: the key of the account in which its bytes are collected."""

    name: str
    key: Keypair
    buffer: Keypair
    code: bytes
    digest: str  # with the ids of the sources


@dataclass(frozen=True, slots=True)
class _Found:
    """How far a program is: what is on the chain, and what its buffer has, with the lamports in that."""

    program: NewProgram
    deployed: loader.LoadedCode | None
    buffer: loader.LoadedCode | None
    lamports: int

    @property
    def label(self) -> str:
        return f"{self.program.name} {self.program.key.pubkey()}"

    @property
    def is_done(self) -> bool:
        return self.deployed is not None and self.deployed.code.rstrip(b"\0") == self.program.code.rstrip(b"\0")

    @property
    def is_open(self) -> bool:
        return self.deployed is None or self.deployed.authority is not None

    @property
    def is_begun(self) -> bool:
        return self.buffer is not None and len(self.buffer.code) == len(self.program.code)

    @property
    def lacking_bytes(self) -> int:
        lacking = len(self.program.code) - len(self.deployed.code) if self.deployed else 0
        return max(lacking, MIN_EXTENSION_BYTES) if lacking > 0 else 0

    def list_missing(self) -> list[int]:
        code, held = self.program.code, self.buffer.code if self.buffer and self.is_begun else b""
        starts = range(0, len(code), PART_BYTES)
        return [at for at in starts if code[at : at + PART_BYTES] != held[at : at + PART_BYTES]]

    def check_right(self, wallet: Pubkey, *, changes: bool) -> None:
        """Refuse a wallet that may not write the buffer or, if it `changes` that, the program."""
        for one in (self.buffer, self.deployed if changes else None):
            if one is not None and one.authority != wallet:
                raise ConfigError(
                    f"{self.label}: {one.authority or NOBODY} may change it on this chain, not wallet {wallet}: name "
                    "another wallet, or another folder of keys with --keys for new programs"
                )


def load_new_programs(folder: Path, sbpf: str) -> list[NewProgram]:
    """The programs with the keys in `folder`, which are made if they are missing, readable by their owner alone."""
    keys = {name: _get_key(folder / f"{name}.json") for name in ProgramIds._fields}
    ids = ProgramIds(*(key.pubkey() for key in keys.values()))
    found: list[NewProgram] = []
    for name, key in keys.items():
        path = find_file(f"{sbpf}psyche_{name}.so")
        source = path.read_bytes()
        digest = sha256(source).hexdigest()
        if digest != read_digests().get(f"{sbpf}psyche_{name}.so"):
            raise ConfigError(f"{path}: is not the file that SHA256SUMS names; install Psyche again")
        buffer = _get_key(folder / f"{name}-buffer.json")
        found.append(NewProgram(name, key, buffer, replace_ids(source, SOURCE_IDS, ids), digest))
    return found


def _get_key(path: Path) -> Keypair:
    if not path.exists():
        write_wallet(path, Keypair())
    return read_wallet(path)


async def deploy(
    session: ChainSession, programs: Sequence[NewProgram], cluster: str, genesis_hash: str, *, is_final: bool
) -> ClusterPrograms:
    """Deploy or upgrade programs, and check what the chain has then; `is_final`: nobody may change them any more."""
    found = await _survey(session, programs)
    for one in found:
        one.check_right(session.key, changes=not one.is_done or (is_final and one.is_open))
    quote = await _make_quote(session, found, is_final=is_final)
    if quote.transactions:
        session.ask(quote)
        session.say("if this is cut off, run the same command again: it goes on, and pays nothing twice")
    for one in found:
        if not one.is_done:
            await _deploy_one(session, one)
    for one in found if is_final else ():
        if one.is_open:
            end = loader.build_end(session.key, one.program.key.pubkey())
            await _send(session, f"let nobody change the {one.program.name}", end)
    with trio.move_on_after(READ_BACK_S):
        while not all(one.is_done and not (is_final and one.is_open) for one in found):
            found = await _survey(session, programs)
            await trio.sleep(POLL_S)
    entries = {one.program.name: _read_back(one) for one in found}
    return ClusterPrograms(cluster, genesis_hash, entries)


async def _survey(session: ChainSession, programs: Sequence[NewProgram]) -> list[_Found]:
    deployed = await read_programs(session.rpc, [one.key.pubkey() for one in programs])
    buffers = await session.rpc.get_accounts([one.buffer.pubkey() for one in programs])
    return [
        _Found(one, code, held and loader.read_code(held.data), held.lamports if held else 0)
        for one, code, held in zip(programs, deployed, buffers, strict=True)
    ]


async def _make_quote(session: ChainSession, found: Sequence[_Found], *, is_final: bool) -> Quote:
    waiting = [one for one in found if not one.is_done]
    ended = [one for one in found if is_final and one.is_open]
    deposit = 0
    for one in waiting:
        header_bytes = loader.BUFFER_HEADER_BYTES if one.deployed else loader.DATA_HEADER_BYTES
        deposit += await session.rpc.get_deposit(header_bytes + len(one.program.code)) - one.lamports
        if one.deployed is None:
            deposit += await session.rpc.get_deposit(loader.PROGRAM_BYTES)
        elif one.lacking_bytes:
            deposit += await session.rpc.get_deposit(one.lacking_bytes) - await session.rpc.get_deposit(0)
    parts = sum(len(one.list_missing()) for one in waiting)
    count = parts + 2 * len(waiting) + len(ended) + sum(one.lacking_bytes > 0 for one in waiting)
    says = ["puts " + ", ".join(f"the {one.label}" for one in waiting) + " on the chain"] if waiting else []
    says += ["then nobody can change them any more, for ever"] if ended else []
    returns = "it stays there" if is_final else "it comes back when they are closed (--close)"
    fee = LAMPORTS_PER_SIGNATURE * (count + 2 * len(waiting))  # keys of buffers and programs sign too
    balance = await session.rpc.get_balance(session.key)
    plan = ChainPlan("; ".join(says), (), max(0, deposit), returns)
    return Quote(plan, count, fee, session.key, balance, session.fees.max_lamports)


async def _deploy_one(session: ChainSession, found: _Found) -> None:
    program, payer, rpc = found.program, session.key, session.rpc
    size, buffer, address = len(program.code), program.buffer.pubkey(), program.key.pubkey()
    if found.buffer is not None and not found.is_begun:
        await _send(session, f"close a buffer of another {program.name}", loader.build_close(payer, buffer))
    if not found.is_begun:
        deposit = await rpc.get_deposit(loader.BUFFER_HEADER_BYTES + size)
        made = loader.build_buffer(payer, buffer, size, deposit)
        await _send(session, f"buffer of the {program.name}", *made, signers=(program.buffer,))
    await _fill(session, program)
    if found.deployed is None:
        made = loader.build_deploy(payer, address, buffer, size, await rpc.get_deposit(loader.PROGRAM_BYTES))
        await _send(session, f"deploy the {program.name}", *made, signers=(program.key,))
    else:
        if found.lacking_bytes:
            room = loader.build_room(payer, address, found.lacking_bytes)
            await _send(session, f"room for the {program.name}", room)
        await _send(session, f"upgrade the {program.name}", loader.build_upgrade(payer, address, buffer))
    session.say(f"{found.label}: is on the chain")


async def _send(
    session: ChainSession, title: str, *instructions: Instruction, signers: tuple[Keypair, ...] = ()
) -> None:
    await session.carry_out(ChainPlan(title, (Step(title, instructions),), signers=signers), is_asked=False)


async def _fill(session: ChainSession, program: NewProgram) -> None:
    """Write what the buffer lacks, until it lacks nothing: a part may be written twice."""
    for attempt in range(MAX_PASSES):
        missing = (await _survey(session, [program]))[0].list_missing()
        if not missing:
            return
        for start in range(0, len(missing), WINDOW):
            percent = 100 - (len(missing) - start) * PART_BYTES * 100 // len(program.code)
            session.say(f"{program.name}: {max(0, percent)} % of {len(program.code) >> 10} KiB")
            await _write_parts(session, program, missing[start : start + WINDOW], attempt)
    raise BackendError(
        f"the buffer of the {program.name} is not full after {MAX_PASSES} passes: the chain is crowded, or the "
        "endpoint drops transactions. Run the same command again, with another --rpc perhaps: it goes on"
    )


async def _write_parts(session: ChainSession, program: NewProgram, starts: Sequence[int], attempt: int) -> None:
    """Send parts, and wait until all have landed, or can land no more; the buffer tells which ones have."""
    assert session.wallet is not None, "the session's key was asked for"
    rpc, payer = session.rpc, session.wallet
    block = await rpc.get_blockhash()
    budget = Budget(WRITE_UNITS, session.fees.choose_price([], WRITE_UNITS, attempt))
    is_here = all(one.is_here for one in rpc.endpoints)
    config = {"encoding": "base64", "skipPreflight": True, "preflightCommitment": "confirmed"}
    signatures: list[str] = []
    for at in starts:
        write = loader.build_write(payer.pubkey(), program.buffer.pubkey(), at, program.code[at : at + PART_BYTES])
        signed = TransactionDraft(payer, (write,), ()).sign(budget, block.hash)
        await rpc.call("sendTransaction", base64.b64encode(bytes(signed)).decode(), config)
        signatures.append(str(signed.signatures[0]))
        await trio.sleep(0 if is_here else PAUSE_S)
    read_landed = partial(read_statuses, count=len(signatures))
    with trio.move_on_after(PATIENCE_S):
        while not all(
            one and one.level in ("confirmed", "finalized")
            for one in await rpc.read(read_landed, "getSignatureStatuses", signatures)
        ):
            if await rpc.read(READ_HEIGHT, "getBlockHeight", {"commitment": "confirmed"}) > block.last_height:
                return
            await trio.sleep(POLL_S)


def _read_back(found: _Found) -> VouchedProgram:
    program = found.program
    if found.deployed is None or not found.is_done:
        raise BackendError(f"{found.label}: the chain has other bytes than those that were sent; check --rpc")
    authority = str(found.deployed.authority or NOBODY)
    return VouchedProgram(str(program.key.pubkey()), program.digest, len(program.code), authority)


async def close_programs(session: ChainSession, programs: Sequence[NewProgram]) -> bool:
    """Close programs for ever, and buffers of a deployment that was cut off; return whether there were any."""
    found = await _survey(session, programs)
    steps: list[Step] = []
    for one in found:
        one.check_right(session.key, changes=True)
        address = one.program.key.pubkey()
        if one.buffer is not None:
            close = loader.build_close(session.key, one.program.buffer.pubkey())
            steps.append(Step(f"close the buffer of the {one.program.name}", (close,)))
        if one.deployed is not None:
            close = loader.build_close(session.key, loader.find_data_address(address), address)
            steps.append(Step(f"close the {one.program.name}", (close,)))
    closed = ", ".join(f"the {one.label}" for one in found if one.deployed)
    says = f"closes {closed} for ever: runs there stand still, and the addresses cannot be used again"
    plan = ChainPlan(says if closed else "closes the buffers of a deployment that was cut off", tuple(steps))
    return await session.carry_out(plan) is not None
