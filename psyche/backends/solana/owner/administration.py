"""A run on Solana, as its owner reaches it: status, record, members, and commands (`backends.port.Administration`)."""

from dataclasses import dataclass, replace
from typing import Final, cast

import msgspec
from solders.instruction import Instruction
from solders.pubkey import Pubkey

from psyche import __version__
from psyche.backends.port import Administration
from psyche.backends.solana.interface.addresses import EVERYBODY
from psyche.backends.solana.interface.coordinator import OwnerMessage, build_owner_message
from psyche.backends.solana.interface.treasurer import RunChange, build_run_update
from psyche.backends.solana.joining import find_authorization
from psyche.backends.solana.lookup import FoundRun, RunTarget, find_decimals, find_run
from psyche.backends.solana.packing import Step
from psyche.backends.solana.session import ChainPlan, ChainSession
from psyche.backends.summary import get_joined_slots, summarize_run
from psyche.core.rules.apply import apply
from psyche.core.state import messages as msg
from psyche.core.state.errors import CoordinatorError
from psyche.core.state.roster import is_in_epoch
from psyche.core.state.state import Coordinator, RunState
from psyche.errors import ConfigError
from psyche.wire.backend import MemberInfo, Members, RunStatus
from psyche.wire.messages import AnyMessage

PROGRAM: Final = f"psyche {__version__} on Solana"
OWNERS_MESSAGES: Final = (msg.Pause, msg.Resume, msg.SetRates, msg.Update, msg.UpdateClientVersion)


@dataclass(frozen=True)
class SolanaAdministration:
    """A run on a chain (`backends.port.Administration`). Every method raises BackendError if no endpoint answers."""

    session: ChainSession
    run_id: str

    async def find(self, min_slot: int | None = None) -> FoundRun:
        """Find the run with its record, as of `min_slot` or later.

        Raises:
            NoRun: there is none.
        """
        return await find_run(self.session, self.run_id, min_slot)

    async def get_record(self) -> Coordinator:
        """Return the whole record, which everybody can see.

        Raises:
            NoRun: there is no such run.
        """
        return (await self.find()).state

    async def get_status(self) -> RunStatus:
        """Return the run's status; who is connected, and what clients say of themselves, is not on a chain.

        Raises:
            NoRun: there is no such run.
        """
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
        """Return the members of the running epoch and those that wait; keys are those of wallets.

        Raises:
            NoRun: there is no such run.
        """
        state = await self.get_record()
        _, unix = await self.session.rpc.get_clock()
        here = enumerate(state.clients) if is_in_epoch(state) else ()
        members = [MemberInfo(one.signer, index, one.state, None) for index, one in here]
        known = {member.key for member in members}
        waiting = [MemberInfo(s.signer, None, None, None) for s in get_joined_slots(state) if s.signer not in known]
        return Members(unix, (*members, *waiting))

    def name_key(self, key: bytes) -> str:
        """Write a key in base58, as all tools of the chain do."""
        return str(Pubkey(key))

    async def command(self, message: AnyMessage) -> RunStatus:
        """Carry out an owner's command; return the status after it.

        Whether it took effect is judged by the record: a transaction that landed before its repeat counts once.

        Raises:
            ConfigError: the wallet does not own the run, or a chain does not have this command.
            CoordinatorError: the rules of the record refuse it; nothing was sent.
        """
        if not isinstance(message, OWNERS_MESSAGES):
            raise ConfigError("this is a command for a server; on a chain, `psyche auth` says who may join")
        found = await self.find()
        found.check_owner(self.session.key)
        slot, unix = await self.session.rpc.get_clock()
        if not _changes(found, unix, slot, message):
            return await self._summarize(found)
        plan = ChainPlan(_describe(self.run_id, message), build_steps(found.target, message))
        try:
            landed = await self.session.carry_out(plan)
        except CoordinatorError:
            again = await self.find()
            if not _is_reached(again.state, message):
                raise
            return await self._summarize(again)
        return await self._summarize(await self.find(landed.slot if landed else None))


def _changes(found: FoundRun, unix: int, slot: int, message: msg.Message) -> bool:
    """Try a command on a copy of the record.

    Raises:
        CoordinatorError: the rules refuse it.
    """
    return apply(found.state, unix, slot, bytes(found.instance.main_authority), message)


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
        case _:
            return RunChange(settings=cast("msg.Update", message))


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


def _describe(run_id: str, message: OwnerMessage) -> str:
    match message:
        case msg.Pause():
            return f"pauses run {run_id!r}"
        case msg.Resume():
            return f"resumes run {run_id!r}"
        case msg.SetRates():
            return f"sets what later epochs of run {run_id!r} pay and take"
        case msg.UpdateClientVersion():
            return f"sets the client version of run {run_id!r} to {message.version!r}"
        case _:
            return f"changes the settings of run {run_id!r}"


def _is_port(backend: SolanaAdministration) -> Administration:
    return backend
