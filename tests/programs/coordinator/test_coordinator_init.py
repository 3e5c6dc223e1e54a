"""How a run begins and ends on a chain: `init_coordinator` and `free_coordinator`."""

from hashlib import sha256

import pytest
from kits.chain.anchor import encode_bytes
from kits.runs import build_paused_run, build_run
from kits.svm import NOW, Refused, replace_accounts, signs
from programs.chain_kit import ChainStage
from programs.refusals import Anchor, CoordinatorError
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from psyche.backends.solana.interface.accounts import InstanceData
from psyche.backends.solana.interface.addresses import COORDINATOR
from psyche.backends.solana.interface.calls import reads, writes
from psyche.core.encoding.account import encode_state
from psyche.core.encoding.tables import DISCRIMINATOR
from psyche.core.state.limits import STATE_BYTES
from psyche.core.state.state import Coordinator, RunState

SLOT = (1_000).to_bytes(8, "little")  # where a test's chain stands


@pytest.fixture
def stage() -> ChainStage:
    return ChainStage()


class TestInit:
    def test_a_new_account_is_what_core_writes_for_a_new_run(self, stage: ChainStage) -> None:
        stage.create("a run", "0.9.1")
        uid = sha256(bytes(stage.account.pubkey()) + b"a run" + NOW.to_bytes(8, "little") + SLOT).digest()
        assert stage.raw == encode_state(Coordinator(run_id="a run", run_uid=uid, client_version="0.9.1"))

    def test_the_instance_names_authorities_and_account(self, stage: ChainStage) -> None:
        stage.create()
        raw = stage.bank.get_data(stage.run.instance)
        assert len(raw) == 181
        bump = Pubkey.find_program_address([b"coordinator", b"run"], COORDINATOR)[1]
        assert InstanceData.read(raw) == (bump, *stage.authorities, stage.run.account, "run", 0)

    def test_texts_fill_their_fields(self, stage: ChainStage) -> None:
        stage.create("r" * 32, "v" * 96)
        assert (stage.state.run_id, stage.state.client_version) == ("r" * 32, "v" * 96)

    def test_a_clock_before_1970_counts_as_0(self, stage: ChainStage) -> None:
        stage.bank.set_time(-5)
        stage.create()
        assert stage.state.run_uid == sha256(bytes(stage.account.pubkey()) + b"run" + bytes(8) + SLOT).digest()

    def test_a_run_id_stands_once(self, stage: ChainStage) -> None:
        stage.create()
        stage.account = Keypair()
        with pytest.raises(Refused, match="already in use"):
            stage.create()

    @pytest.mark.parametrize(
        ("run_id", "version"), [("", ""), ("r" * 33, ""), ("r\0n", ""), ("run", "v" * 97), ("run", "v\0")]
    )
    def test_texts_that_do_not_fit_are_refused(self, stage: ChainStage, run_id: str, version: str) -> None:
        creation, init = stage.build_init()
        instance = Pubkey.find_program_address([b"coordinator", run_id.encode()[:32]], COORDINATOR)[0]
        body = init.data[: 8 + 64] + b"".join(encode_bytes(text.encode()) for text in (run_id, version))
        init = Instruction(COORDINATOR, body, replace_accounts(init, {1: writes(instance)}).accounts)
        assert stage.bank.refuse(init, stage.account, before=[creation]) == CoordinatorError.INVALID_TEXTS

    def test_a_run_id_that_is_no_text_is_refused(self, stage: ChainStage) -> None:
        creation, init = stage.build_init("abc")
        broken = Instruction(init.program_id, init.data.replace(b"abc", b"a\xff\xfe"), init.accounts)
        assert stage.bank.refuse(broken, stage.account, before=[creation]) == Anchor.NOT_UNDERSTOOD


class TestAccountOfANewRun:
    """`init_coordinator` takes no account but an empty one of its own program, whose key signs."""

    def test_an_empty_account_of_the_right_size_is_taken(self, stage: ChainStage) -> None:
        stage.put_raw(bytes(STATE_BYTES))
        stage.bank.send(stage.build_init()[1], signers=[stage.account])
        assert stage.raw.startswith(DISCRIMINATOR)

    def test_another_account_is_refused(self, stage: ChainStage) -> None:
        sizes = [(bytes(size), CoordinatorError.WRONG_SIZE) for size in (8, STATE_BYTES - 1, STATE_BYTES + 1)]
        places = (8, 15, 16, 1_000, STATE_BYTES - 2, STATE_BYTES - 1)
        used = [(bytes(place) + b"\1" + bytes(STATE_BYTES - place - 1), CoordinatorError.NOT_EMPTY) for place in places]
        for raw, code in (*sizes, *used, (encode_state(build_run().state), Anchor.NOT_ZERO)):
            stage.put_raw(raw)
            assert stage.bank.refuse(stage.build_init()[1], stage.account) == code
        stage.bank.put(stage.account.pubkey(), Pubkey.default(), bytes(STATE_BYTES))
        assert stage.bank.refuse(stage.build_init()[1], stage.account) == Anchor.WRONG_OWNER

    def test_other_accounts_of_the_instruction_are_checked(self, stage: ChainStage) -> None:
        stage.put_raw(bytes(STATE_BYTES))
        init, payer = stage.build_init()[1], Keypair()
        for place, account, code in (
            (0, writes(payer.pubkey()), Anchor.NOT_SIGNER),
            (0, signs(payer), None),
            (1, writes(payer.pubkey()), Anchor.BAD_SEEDS),
            (2, writes(stage.account.pubkey()), Anchor.NOT_SIGNED),
            (2, signs(stage.account), Anchor.NOT_WRITABLE),
            (3, reads(COORDINATOR), Anchor.WRONG_PROGRAM),
        ):
            assert stage.bank.refuse(replace_accounts(init, {place: account}), stage.account, payer) == code


class TestFree:
    def test_both_deposits_go_to_the_spill_account_and_name_and_account_are_free_again(self, stage: ChainStage) -> None:
        stage.create()
        first, spill = stage.state.run_uid, Keypair().pubkey()
        deposits = [stage.bank.get_lamports(account) for account in stage.run]
        stage.bank.send(stage.free(spill), signers=[stage.owner])
        assert stage.bank.get_lamports(spill) == sum(deposits) > 1_150_627_200
        assert [stage.bank.get_data(account) for account in stage.run] == [b"", b""]
        stage.bank.set_time(NOW, slot=1_001)  # in the same second
        stage.create()
        assert stage.state.run_uid != first

    @pytest.mark.parametrize("state", [RunState.FINISHED, RunState.PAUSED])
    def test_a_halted_run_is_freed_once_its_earnings_are_collected(self, state: RunState) -> None:
        run = build_paused_run()
        run.state.run_state, run.state.registry.slots[1].earned = state, 1
        stage = ChainStage(run.state)
        assert stage.bank.refuse(stage.free(), stage.owner) == CoordinatorError.UNCOLLECTED
        run.state.registry.slots[1].earned = 0
        stage.put(run.state)
        stage.bank.send(stage.free(), signers=[stage.owner])
        assert not stage.raw

    def test_a_run_that_is_going_is_not_freed(self) -> None:
        stage = ChainStage(build_run().state)
        assert stage.bank.refuse(stage.free(), stage.owner) == CoordinatorError.NOT_HALTED

    def test_what_is_closed_or_paid_must_be_writable_and_three_accounts(self, stage: ChainStage) -> None:
        stage.create()
        free = stage.free()
        for place in (1, 2, 3):
            unwritable = replace_accounts(free, {place: reads(free.accounts[place].pubkey)})
            assert stage.bank.refuse(unwritable, stage.owner) == Anchor.NOT_WRITABLE
        for account in stage.run:
            assert stage.bank.refuse(stage.free(account), stage.owner) is not None
        assert stage.raw.startswith(DISCRIMINATOR)
