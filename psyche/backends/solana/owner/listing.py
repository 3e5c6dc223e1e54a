"""What strangers ask of a chain: which runs there are, and whether a wallet may join one."""

from typing import Any, NamedTuple

from solders.pubkey import Pubkey

from psyche.backends.solana.interface.addresses import EVERYBODY
from psyche.backends.solana.joining import allows, find_authorization, name_grantee
from psyche.backends.solana.lookup import find_run, list_instances, read_run
from psyche.backends.solana.session import ChainSession
from psyche.backends.summary import get_joined_slots
from psyche.core.state.limits import MAX_CLIENTS
from psyche.core.state.state import RunState, SlotState


class JoinVerdict(NamedTuple):
    problem: bool
    reason: str


async def list_rows(session: ChainSession, join_authority: Pubkey | None = None) -> list[dict[str, Any]]:
    """List the runs of a chain by id, as JSON can hold them; with `join_authority` only those of that wallet."""
    rows: list[dict[str, Any]] = []
    for instance in await list_instances(session):
        if join_authority not in (None, instance.join_authority):
            continue
        found = await read_run(session.rpc, instance)
        state = found.state
        rows.append(
            {
                "run_id": instance.run_id,
                "state": RunState(state.run_state).name.lower(),
                "epoch": state.progress.epoch,
                "step": state.progress.step,
                "total_steps": state.config.total_steps,
                "members": len(state.clients),
                "waiting": len(get_joined_slots(state)),
                "client_version": state.client_version,
                "owner": str(found.owner),
                "join_authority": str(instance.join_authority),
                "pays": found.treasurer is not None,
                "coordinator_account": str(instance.coordinator_account),
                "coordinator_instance": str(found.accounts.instance),
            }
        )
    return rows


async def judge_join(session: ChainSession, run_id: str, wallet: Pubkey, authorizer: Pubkey | None) -> JoinVerdict:
    """Judge whether a wallet may join a run: by the record, and by the authorizations that could allow it."""
    found = await find_run(session, run_id)
    state, grantor = found.state, found.instance.join_authority
    if state.run_state is RunState.FINISHED:
        return JoinVerdict(True, f"no: run {run_id!r} is finished")
    slots = [slot for slot in state.registry.slots if slot.signer == bytes(wallet)]
    if any(slot.state is SlotState.BANNED for slot in slots):
        return JoinVerdict(True, f"no: {wallet} was ejected from run {run_id!r}, for good")
    for grantee in dict.fromkeys((wallet, EVERYBODY) if authorizer is None else (authorizer,)):
        if allows(await find_authorization(session, grantor, grantee), wallet):
            if not slots and len(state.registry.slots) >= MAX_CLIENTS:
                return JoinVerdict(True, f"no: all {MAX_CLIENTS} places of run {run_id!r} are taken")
            return JoinVerdict(False, f"yes: {grantor} has authorized {name_grantee(grantee)}")
    who = f"{wallet}, nor everybody" if authorizer is None else f"{authorizer} with {wallet} as its delegate"
    create = session.write_command(f"auth create --authorizer {authorizer or wallet}", signed=False)
    return JoinVerdict(True, f"no: {grantor} has not authorized {who}; with its wallet it must run {create}")
