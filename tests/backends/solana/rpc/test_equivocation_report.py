"""A member reports another one over RPC, and the chain's program checks the two signatures itself (R7)."""

from functools import partial

import trio
from kits.chain.chain_run import open_chain_run
from kits.runs import Run, get_equal_keys
from solders.account import Account

from psyche.backends.solana.interface.addresses import COORDINATOR
from psyche.backends.solana.rpc.run_link import open_link
from psyche.core.encoding.account import encode_state
from psyche.core.rules.apply import apply
from psyche.core.state.gossip import Evidence, Result
from psyche.core.state.messages import ReportEquivocation
from psyche.core.state.state import ClientState, SlotState
from psyche.testing.builders import build_config, build_identity, build_state
from psyche.wire.crypto import compute_commitment
from psyche.wire.gossip import encode_gossip, sign_gossip
from psyche.wire.key_file import make_identity

MEMBER = 1
HEADERS = bytes(448), bytes(447) + b"\1"


async def test_a_report_with_two_signed_results_ejects_the_member_as_core_says() -> None:
    identities = [build_identity("member", number) for number in range(4)]
    run = Run(build_state(build_config(rounds_per_epoch=30)), keys=partial(get_equal_keys, identities))
    run.join(*range(4))
    run.warm_up()
    state, report = run.state, ReportEquivocation(0, 0, MEMBER)
    signed = [
        sign_gossip(
            identities[MEMBER], run_uid=state.run_uid, epoch=0, height=0, member=MEMBER,
            body=Result(compute_commitment(header), header),
        )
        for header in HEADERS
    ]  # fmt: skip
    async with open_chain_run() as kit:
        bank, wallet = kit.chain.bank, kit.fund()
        old = bank.get_account(kit.run.account)
        assert old is not None
        bank.put_account(kit.run.account, Account(old.lamports, encode_state(state), COORDINATOR))
        async with open_link(kit.rpc, kit.run, wallet, make_identity(), kit.authorization) as link:
            readings = link.readings()
            with trio.fail_after(120):
                while (await anext(readings)).raw != encode_state(state):
                    pass  # of the run before
                await link.send([report], Evidence(*map(encode_gossip, signed)))
            await readings.aclose()
        landed = next(one for one in bank.history._records.values() if one.keys[0] == wallet.pubkey())
        assert landed.status.error is None
        apply(state, landed.unix, landed.status.slot, bytes(wallet.pubkey()), report)
        assert kit.read() == state
        assert kit.read().clients[MEMBER].state is ClientState.EJECTED
        assert kit.read().registry.slots[MEMBER].state is SlotState.BANNED
