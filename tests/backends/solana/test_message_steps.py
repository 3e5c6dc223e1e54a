"""How often a record is read and a message tried before it is sent: each costs a call, or milliseconds."""

from typing import Any

import pytest
import trio
from kits.chain.chain_run import ChainRunKit, open_chain_run

from psyche.backends.solana.member import logic
from psyche.backends.solana.owner import administration
from psyche.backends.solana.owner.administration import SolanaAdministration
from psyche.backends.solana.session import ChainSession
from psyche.cli.commands.run.changes import prepare_update, send_update
from psyche.config import update
from psyche.core.rules.apply import apply
from psyche.core.state.messages import Join, Message, Pause, Tick, Update, WarmupWitness
from psyche.core.state.state import Coordinator, Metadata, RunState
from psyche.telemetry.run_line import write_briefly
from psyche.testing.builders import build_config


class Counter:
    """Counts what comes before the first transaction: messages tried here and there, and reads of the run's account."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kit: ChainRunKit) -> None:
        self.tries: list[str] = []
        self.reads = self.sent = 0
        account, read_one = str(kit.run.account), kit.rpc.read_one

        def try_here(state: Coordinator, unix: int, slot: int, sender: bytes, message: Message) -> bool:
            if not self.sent and not isinstance(message, Tick):
                self.tries.append("here")
            return apply(state, unix, slot, sender, message)

        async def ask(endpoint: Any, convert: Any, method: str, *params: Any) -> Any:
            self.sent += method == "sendTransaction"
            if not self.sent:
                self.reads += method == "getAccountInfo" and params[0] == account
                self.tries += ["chain"] * (method == "simulateTransaction")
            return await read_one(endpoint, convert, method, *params)

        for module in (logic, administration, update):
            monkeypatch.setattr(module, "apply", try_here)
        monkeypatch.setattr(kit.rpc, "read_one", ask)


async def test_an_update_is_tried_twice_and_the_record_read_twice_before_it_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_chain_run() as kit:
        run = SolanaAdministration(ChainSession(kit.rpc, kit.owner, lambda _quote: None), "run")
        await run.command(Pause())
        counter = Counter(monkeypatch, kit)

        def build(record: Coordinator) -> Update:
            return Update(metadata=Metadata(name="another name"))

        _, wanted = await prepare_update(run, build, write_briefly)
        await send_update(run, wanted, build)
        assert (counter.tries, counter.reads) == (["here", "chain"], 2)
        assert kit.read().metadata.name == "another name"


async def test_a_members_message_is_tried_once_here_and_once_on_the_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = build_config(init_min_clients=1, min_clients=1, waiting_for_members_extra_time=1, warmup_time=600)
    async with open_chain_run(config=alone) as kit:
        async with kit.open_member() as (backend, _, identity):
            with trio.fail_after(120):
                await backend.submit(Join(identity.public))
                states = backend.states()
                while (state := await anext(states)).run_state is not RunState.WARMUP:
                    pass
                counter = Counter(monkeypatch, kit)
                await backend.submit(WarmupWitness(state.progress.epoch, 0, b"\5" * 32))
        assert counter.tries == ["here", "chain"]
