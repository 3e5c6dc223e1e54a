"""Who may join which runs: the authorizations of grantors, the delegates that join in a name, and the list of runs."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from solders.pubkey import Pubkey

from psyche.backends.solana.interface.accounts import AUTHORIZATION, AuthorizationData
from psyche.backends.solana.interface.addresses import EVERYBODY, JOIN_SCOPE, get_authorization_address, parse_key
from psyche.backends.solana.interface.authorizer import (
    build_authorization_close,
    build_authorization_create,
    build_authorization_grantee_update,
    build_authorization_grantor_update,
)
from psyche.backends.solana.interface.borsh import KEY_BYTES
from psyche.backends.solana.lookup import find_run, list_instances, read_run
from psyche.backends.solana.rpc.replies import get_data
from psyche.backends.solana.session import ChainPlan, ChainSession, Step
from psyche.backends.summary import get_joined_slots
from psyche.core.state.limits import MAX_CLIENTS
from psyche.core.state.state import RunState, SlotState
from psyche.errors import ConfigError

EMPTY_BYTES: Final = 90 + len(JOIN_SCOPE)
MAX_ADDED: Final = 20  # in one transaction, with room for the compute budget
MAX_DELEGATES: Final = 256
CLOSABLE_AFTER_S: Final = 30 * 86_400


def parse_grantee(text: str) -> Pubkey:
    """Read who is authorized: a wallet, or `everybody`, which the original calls `permissionless`."""
    is_all = text.strip().lower() in ("everybody", "everyone", "permissionless")
    return EVERYBODY if is_all else parse_key(text, "--authorizer")


def describe_authorization(found: AuthorizationData) -> dict[str, Any]:
    return {
        "address": str(get_authorization_address(found.grantor, found.grantee)),
        "grantor": str(found.grantor),
        "grantee": name_grantee(found.grantee),
        "active": found.active,
        "delegates": [str(key) for key in found.delegates],
        "updated_unix": found.grantor_update_unix_timestamp,
    }


def name_grantee(grantee: Pubkey) -> str:
    return "everybody" if grantee == EVERYBODY else str(grantee)


async def find_authorization(session: ChainSession, grantor: Pubkey, grantee: Pubkey) -> AuthorizationData | None:
    address = get_authorization_address(grantor, grantee)
    data = get_data(AUTHORIZATION, address, await session.rpc.get_account(address))
    return None if data is None else AuthorizationData.read(data)


def allows(found: AuthorizationData | None, wallet: Pubkey) -> bool:
    return found is not None and found.active and (found.grantee in (EVERYBODY, wallet) or wallet in found.delegates)


async def find_grantee(
    session: ChainSession, grantor: Pubkey, wallet: Pubkey, authorizer: Pubkey | None
) -> Pubkey | None:
    """Find whose authorization lets a wallet join: its own, everybody's, or that of `authorizer`; None: nobody's."""
    for grantee in dict.fromkeys((wallet, EVERYBODY)) if authorizer is None else (authorizer,):
        if allows(await find_authorization(session, grantor, grantee), wallet):
            return grantee
    return None


async def plan_grant(session: ChainSession, grantee: Pubkey) -> ChainPlan:
    """Plan to let a wallet join the runs whose join authority this wallet is; no steps: it may already."""
    address = get_authorization_address(session.key, grantee)
    found = await find_authorization(session, session.key, grantee)
    says = f"lets {name_grantee(grantee)} join the runs whose join authority is {session.key}"
    turn_on = build_authorization_grantor_update(session.key, address, active=True)
    if found is None:
        await session.check_programs()
        create = build_authorization_create(session.key, session.key, grantee)
        deposit = await session.rpc.get_deposit(EMPTY_BYTES)
        returns = f"{session.write_command(f'auth delete --authorizer {name_grantee(grantee)}')} returns it"
        return ChainPlan(says, (Step("authorization", (create, turn_on)),), deposit, returns)
    return ChainPlan(says, () if found.active else (Step("authorization", (turn_on,)),))


async def plan_delegates(session: ChainSession, grantor: Pubkey, added: Sequence[Pubkey], *, clear: bool) -> ChainPlan:
    found = await find_authorization(session, grantor, session.key)
    if found is None:
        raise ConfigError(
            f"{grantor} has not authorized {session.key}: with its wallet it must run "
            f"{session.write_command(f'auth create --authorizer {session.key}', signed=False)}"
        )
    before = () if clear else found.delegates
    new = [key for key in dict.fromkeys(added) if key not in before]
    if len(before) + len(new) > MAX_DELEGATES:
        raise ConfigError(f"{len(before) + len(new)} delegates: an authorization has at most {MAX_DELEGATES}")
    parts = [new[at : at + MAX_ADDED] for at in range(0, len(new), MAX_ADDED)] or ([[]] if clear else [])
    address = get_authorization_address(grantor, session.key)
    steps = [
        Step(f"{len(part)} delegates", (
            build_authorization_grantee_update(session.key, session.key, address, part, clear=clear and not number),
        ))
        for number, part in enumerate(parts)
    ]  # fmt: skip
    per_key = await session.rpc.get_deposit(KEY_BYTES) - await session.rpc.get_deposit(0)
    removed = f"removes {len(found.delegates)} delegates, then " if clear else ""
    says = f"{removed}lets {len(new)} more wallets join in the name of {session.key}"
    returns = "who removes them gets it back"
    return ChainPlan(says, tuple(steps), max(0, len(before) + len(new) - len(found.delegates)) * per_key, returns)


async def plan_revoke(session: ChainSession, grantee: Pubkey) -> tuple[ChainPlan, str]:
    """Plan to let a wallet join no longer; return it with what stays to do, empty if nothing."""
    found = await find_authorization(session, session.key, grantee)
    if found is None:
        raise ConfigError(f"{session.key} has not authorized {name_grantee(grantee)}: there is nothing to delete")
    address = get_authorization_address(session.key, grantee)
    turn_off = build_authorization_grantor_update(session.key, address, active=False)
    close = build_authorization_close(session.key, session.key, address)
    _, unix = await session.rpc.get_clock()
    closable_unix = found.grantor_update_unix_timestamp + CLOSABLE_AFTER_S
    is_closable = not found.delegates or (not found.active and unix >= closable_unix)
    parts = (*((turn_off,) if found.active else ()), *((close,) if is_closable else ()))
    says = f"lets {name_grantee(grantee)} and its delegates join no longer; who has joined stays until the epoch ends"
    rest = "" if is_closable else (
        f"it is off; its deposit comes back 30 days later, or as soon as {name_grantee(grantee)} has removed its "
        "delegates: run this command again then"
    )  # fmt: skip
    return ChainPlan(says, (Step("authorization", parts),) if parts else ()), rest


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
    if (grantee := await find_grantee(session, grantor, wallet, authorizer)) is not None:
        if not slots and len(state.registry.slots) >= MAX_CLIENTS:
            return JoinVerdict(True, f"no: all {MAX_CLIENTS} places of run {run_id!r} are taken")
        return JoinVerdict(False, f"yes: {grantor} has authorized {name_grantee(grantee)}")
    who = f"{wallet}, nor everybody" if authorizer is None else f"{authorizer} with {wallet} as its delegate"
    create = session.write_command(f"auth create --authorizer {authorizer or wallet}", signed=False)
    return JoinVerdict(True, f"no: {grantor} has not authorized {who}; with its wallet it must run {create}")
