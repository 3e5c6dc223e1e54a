"""Validators accept the built programs: deployed by the loader's own instruction, which checks their files."""

import struct
from pathlib import Path

import pytest
from solders.account import Account
from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.litesvm import LiteSVM
from solders.message import Message
from solders.pubkey import Pubkey
from solders.system_program import ID as SYSTEM
from solders.system_program import CreateAccountParams, create_account
from solders.sysvar import CLOCK, RENT
from solders.transaction import Transaction
from solders.transaction_metadata import FailedTransactionMetadata, TransactionMetadata

BUILT = Path(__file__).parents[3] / "programs" / "built"
FILES = sorted(str(path.relative_to(BUILT)) for path in BUILT.rglob("*.so"))
LOADER = Pubkey.from_string("BPFLoaderUpgradeab1e11111111111111111111111")
BUFFER_HEADER_BYTES, PROGRAM_BYTES = 37, 36
IS_BUFFER, DEPLOY = 1, 2
SOL = 10**9


def build_deployment(svm: LiteSVM, payer: Keypair, program: Keypair, file: bytes) -> Transaction:
    """The loader's instruction that makes a program from a buffer, which is laid beside it."""
    buffer = Pubkey.new_unique()
    content = struct.pack("<IB", IS_BUFFER, 1) + bytes(payer.pubkey()) + file
    deposit = svm.minimum_balance_for_rent_exemption(len(content))
    svm.set_account(buffer, Account(deposit, content, LOADER))
    data_address, _ = Pubkey.find_program_address([bytes(program.pubkey())], LOADER)
    lamports = svm.minimum_balance_for_rent_exemption(PROGRAM_BYTES)
    account = CreateAccountParams(
        from_pubkey=payer.pubkey(), to_pubkey=program.pubkey(), lamports=lamports, space=PROGRAM_BYTES, owner=LOADER
    )
    accounts = [
        AccountMeta(payer.pubkey(), is_signer=True, is_writable=True),
        *(AccountMeta(key, is_signer=False, is_writable=True) for key in (data_address, program.pubkey(), buffer)),
        *(AccountMeta(key, is_signer=False, is_writable=False) for key in (RENT, CLOCK, SYSTEM)),
        AccountMeta(payer.pubkey(), is_signer=True, is_writable=False),
    ]
    deploy = Instruction(LOADER, struct.pack("<IQ", DEPLOY, len(file)), accounts)
    message = Message([create_account(account), deploy], payer.pubkey())
    return Transaction([payer, program], message, svm.latest_blockhash())


def call(svm: LiteSVM, payer: Keypair, program: Pubkey) -> FailedTransactionMetadata | TransactionMetadata:
    svm.warp_to_slot(svm.get_clock().slot + 5)  # a program is there from the next slot on
    svm.expire_blockhash()
    message = Message([Instruction(program, b"?", [])], payer.pubkey())
    return svm.send_transaction(Transaction([payer], message, svm.latest_blockhash()))


@pytest.mark.parametrize("features", ["all", "mainnet"])
@pytest.mark.parametrize("file", FILES)
def test_a_built_program_is_deployed_and_answers(file: str, features: str) -> None:
    svm = LiteSVM() if features == "all" else LiteSVM().with_mainnet_features()
    payer, program = Keypair(), Keypair()
    svm.airdrop(payer.pubkey(), 100 * SOL)
    deployed = svm.send_transaction(build_deployment(svm, payer, program, (BUILT / file).read_bytes()))
    assert isinstance(deployed, TransactionMetadata), f"{deployed.err()}: {deployed.meta().logs()}"
    answer = call(svm, payer, program.pubkey())
    assert isinstance(answer, FailedTransactionMetadata)  # no program knows this instruction
    assert "custom program error" in "".join(answer.meta().logs())


def test_a_file_with_an_unknown_instruction_is_not_deployed() -> None:
    svm, payer, program = LiteSVM(), Keypair(), Keypair()
    svm.airdrop(payer.pubkey(), 100 * SOL)
    file = bytearray((BUILT / "psyche_arithmetic.so").read_bytes())
    text = struct.unpack_from("<Q", file, 64 + 8)[0]  # where the first segment, the code, begins
    file[text] = 0xFF
    deployed = svm.send_transaction(build_deployment(svm, payer, program, bytes(file)))
    assert isinstance(deployed, FailedTransactionMetadata)
