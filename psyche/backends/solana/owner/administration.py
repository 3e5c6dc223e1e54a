"""A run on Solana, as its owner reaches it: status, record, members, and commands."""

from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec
from solders.instruction import Instruction
from solders.pubkey import Pubkey

from psyche import __version__
from psyche.backends.port import Build, build_in_thread
from psyche.backends.solana.history import ChainHistory
from psyche.backends.solana.interface.addresses import EVERYBODY, parse_key
from psyche.backends.solana.interface.coordinator import OwnerMessage, build_owner_message
from psyche.backends.solana.interface.treasurer import RunChange, build_run_update
from psyche.backends.solana.joining import find_authorization
from psyche.backends.solana.lookup import FoundRun, RunTarget, find_decimals, find_run
from psyche.backends.solana.owner.rewards import find_earner
from psyche.backends.solana.session import ChainPlan, ChainSession, Step
from psyche.backends.summary import add_counts, get_joined_slots, summarize_run
from psyche.core.rules.apply import apply
from psyche.core.state import messages as msg
from psyche.core.state.errors import CoordinatorError
from psyche.core.state.roster import is_in_epoch
from psyche.core.state.state import ClientState, Coordinator, RunState, SlotState
from psyche.errors import ConfigError
from psyche.wire.backend import AnyMessage, MemberInfo, Members, RunStatus
from psyche.wire.history import HistoryPoint

PROGRAM: Final = f"psyche {__version__} on Solana"
OWNERS_MESSAGES: Final[dict[type[msg.Message], str]] = {  # what they do, for who pays
    msg.Pause: "pauses run {}",
    msg.Resume: "resumes run {}",
    msg.SetRates: "sets what later epochs of run {} pay and take",
    msg.Update: "changes the settings of run {}",
    msg.UpdateClientVersion: "sets the client version of run {} to {message.version!r}",
}


@dataclass(frozen=True)
class SolanaAdministration:
    """A run on a chain, as its owner reaches it. Every method raises NoRun if there is none."""

    session: ChainSession
    run_id: str
    _history: list[ChainHistory] = field(default_factory=list[ChainHistory])  # one, once the run is found

    async def find(self, min_slot: int | None = None) -> FoundRun:
        return await find_run(self.session, self.run_id, min_slot)

    async def get_record(self) -> Coordinator:
        return (await self.find()).state

    async def get_status(self) -> RunStatus:
        return await self._summarize(await self.find())

    async def _summarize(self, found: FoundRun) -> RunStatus:
        rpc, run = self.session.rpc, found.treasurer
        _, unix = await rpc.get_clock()
        everybody = await find_authorization(self.session, found.instance.join_authority, EVERYBODY)
        return msgspec.structs.replace(
            summarize_run(found.state, unix, PROGRAM),
            is_open=everybody is not None and everybody.active,
            allowed=None,
            decimals=0 if run is None else await find_decimals(rpc, run.collateral_mint),
        )

    async def get_members(self) -> Members:
        state = await self.get_record()
        _, unix = await self.session.rpc.get_clock()
        here = enumerate(state.clients) if is_in_epoch(state) else ()
        members = [add_counts(MemberInfo(one.signer, index, one.state, None), state, one) for index, one in here]
        known = {member.key for member in members}
        waiting = [MemberInfo(s.signer, None, None, None) for s in get_joined_slots(state) if s.signer not in known]
        return Members(unix, (*members, *waiting))

    async def get_history(self, after_step: int = 0) -> tuple[HistoryPoint, ...]:
        if not self._history:
            self._history.append(ChainHistory(self.session.rpc, (await self.find()).accounts.account))
        return tuple((await self._history[0].read()).after(after_step))

    def name_key(self, key: bytes) -> str:
        return str(Pubkey(key))

    async def describe_wallet(self, address: str) -> dict[str, Any]:
        wallet, found = parse_key(address, "--address"), await self.find()
        slots = [slot for slot in found.state.registry.slots if slot.signer == bytes(wallet)]
        members = [(index, one) for index, one in enumerate(found.state.clients) if one.signer == bytes(wallet)]
        earner = await find_earner(self.session, found, wallet)
        return {
            "address": str(wallet),
            "run_id": self.run_id,
            "slot": SlotState(slots[0].state).name.lower() if slots else None,
            "p2p_key": slots[0].p2p.hex() if slots else None,
            "waits": any(slot.signer == bytes(wallet) for slot in get_joined_slots(found.state)),
            "index": members[0][0] if members else None,
            "state": ClientState(members[0][1].state).name.lower() if members else None,
            "earned": earner.in_slot + (earner.collected or 0),
            "collected": earner.collected or 0,
            "paid": earner.claimed or 0,
            "unpaid": earner.unpaid,
        }

    async def command(self, message: AnyMessage | Build) -> RunStatus:
        """Carry out an owner's command.

        Whether it took effect is judged by the record: a transaction that is on it before its repeat counts once. The
        chain tries each transaction before it is sent, so what was checked when it was built is not tried here again.
        """
        found = await self.find()
        found.check_owner(self.session.key)
        if callable(message):
            message, is_checked = await build_in_thread(message, found.state), True
        else:
            is_checked = False
        if not isinstance(message, OwnerMessage):
            raise ConfigError("this is a command for a server; on a chain, `psyche auth` says who may join")
        if not is_checked and not await self._would_change(found, message):
            return await self._summarize(found)
        says = OWNERS_MESSAGES[type(message)].format(repr(self.run_id), message=message)
        plan = ChainPlan(says, build_steps(found.target, message))
        try:
            sent = await self.session.carry_out(plan)
        except CoordinatorError:
            again = await self.find()
            if not _is_reached(again.state, message):
                raise
            return await self._summarize(again)
        return await self._summarize(await self.find(sent.slot if sent else None))

    async def _would_change(self, found: FoundRun, message: msg.Message) -> bool:
        """Try a command on this copy of the record, which it spoils."""
        slot, unix = await self.session.rpc.get_clock()
        return apply(found.state, unix, slot, bytes(found.instance.main_authority), message)


async def find_administration(session: ChainSession, run_id: str, index: int | None) -> SolanaAdministration:
    """Find a run; `index` is what a person says of its index at the treasurer, which is checked."""
    if not run_id:
        raise ConfigError("a chain has many runs: name this one with --run-id (or RUN_ID in the environment)")
    administration = SolanaAdministration(session, run_id)
    if index is not None:
        treasurer = (await administration.find()).treasurer
        if treasurer is None or treasurer.index != index:
            found = "has no treasurer" if treasurer is None else f"has the index {treasurer.index}"
            raise ConfigError(f"--treasurer-index {index}: run {run_id!r} {found}; leave the option out")
    return administration


def _is_reached(state: Coordinator, message: msg.Message) -> bool:
    """Whether the record is as a command leaves it; before, it was not."""
    match message:
        case msg.Pause():
            return state.pending_pause or state.run_state is RunState.PAUSED
        case msg.Resume():
            return not state.halted
        case _:
            try:
                return not apply(state, state.state_start_unix, 0, b"", message)
            except CoordinatorError:
                return False


def build_steps(target: RunTarget, message: OwnerMessage) -> tuple[Step, ...]:
    """Build an owner's command in parts, each of which fits a transaction: the settings of training first."""
    return tuple(Step(title, (_build(target, part),)) for title, part in _split(message))


def _build(target: RunTarget, message: OwnerMessage) -> Instruction:
    if target.treasurer is None:
        return build_owner_message(target.accounts, target.main_authority, message)
    return build_run_update(target.treasurer, _as_change(message))


def _as_change(message: OwnerMessage) -> RunChange:
    match message:
        case msg.Pause() | msg.Resume():
            return RunChange(paused=isinstance(message, msg.Pause))
        case msg.SetRates():
            return RunChange(earning=message.earning, slashing=message.slashing)
        case msg.UpdateClientVersion():
            return RunChange(client_version=message.version)
        case msg.Update():
            return RunChange(settings=message)


def _split(message: OwnerMessage) -> list[tuple[str, OwnerMessage]]:
    if not isinstance(message, msg.Update):
        return [(type(message).__name__.lower(), message)]
    training = replace(message, metadata=None, bootstrap=None)
    parts = [
        ("config and model", training if training.changes_training else msg.Update()),
        ("metadata", msg.Update(metadata=message.metadata)),
        ("bootstrap addresses", msg.Update(bootstrap=message.bootstrap)),
    ]
    return [part for part in parts if part[1] != msg.Update()]
