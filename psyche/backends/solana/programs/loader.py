"""The chain's loader of programs that can be upgraded: its instructions, and what its accounts say."""

import struct
from typing import Final, NamedTuple

from solders.instruction import AccountMeta, Instruction
from solders.pubkey import Pubkey
from solders.system_program import ID as SYSTEM
from solders.system_program import CreateAccountParams, create_account
from solders.sysvar import CLOCK, RENT

from psyche.backends.solana.interface.calls import reads, signs, writes
from psyche.errors import WireError

UPGRADEABLE: Final = Pubkey.from_string("BPFLoaderUpgradeab1e11111111111111111111111")
FORMER: Final = Pubkey.from_string("BPFLoader2111111111111111111111111111111111")  # its programs cannot be upgraded
BUFFER_HEADER_BYTES: Final = 37
PROGRAM_BYTES: Final = 36
DATA_HEADER_BYTES: Final = 45
_BEGIN, _WRITE, _DEPLOY, _UPGRADE, _SET_AUTHORITY, _CLOSE, _EXTEND = range(7)
_IS_BUFFER: Final = 1
_IS_DATA: Final = 3


class LoadedCode(NamedTuple):
    """A program's bytes, or those of a buffer, with the zeros behind them; `authority`: who may change them."""

    code: bytes
    authority: Pubkey | None


def find_data_address(program: Pubkey) -> Pubkey:
    return Pubkey.find_program_address([bytes(program)], UPGRADEABLE)[0]


def read_code(data: bytes) -> LoadedCode:
    kind = int.from_bytes(data[:4], "little")
    start = {_IS_BUFFER: 4, _IS_DATA: 12}.get(kind)
    size = BUFFER_HEADER_BYTES if kind == _IS_BUFFER else DATA_HEADER_BYTES
    if start is None or len(data) < size:
        raise WireError("is neither a program's bytes nor a buffer of them")
    return LoadedCode(data[size:], Pubkey(data[start + 1 : size]) if data[start] else None)


def build_buffer(payer: Pubkey, buffer: Pubkey, size_bytes: int, deposit: int) -> tuple[Instruction, Instruction]:
    """Make a buffer for a program, which the payer may write; payer and the buffer's key sign."""
    space = BUFFER_HEADER_BYTES + size_bytes
    account = CreateAccountParams(from_pubkey=payer, to_pubkey=buffer, lamports=deposit, space=space, owner=UPGRADEABLE)
    return create_account(account), _build(_BEGIN, b"", writes(buffer), reads(payer))


def build_write(payer: Pubkey, buffer: Pubkey, at: int, part: bytes) -> Instruction:
    return _build(_WRITE, struct.pack("<IQ", at, len(part)) + part, writes(buffer), signs(payer))


def build_deploy(
    payer: Pubkey, program: Pubkey, buffer: Pubkey, size_bytes: int, deposit: int
) -> tuple[Instruction, Instruction]:
    """Make a program of a buffer; payer and the program's key sign. The payer may upgrade it."""
    account = CreateAccountParams(
        from_pubkey=payer, to_pubkey=program, lamports=deposit, space=PROGRAM_BYTES, owner=UPGRADEABLE
    )
    accounts = (
        signs(payer, writable=True), writes(find_data_address(program)), writes(program), writes(buffer), reads(RENT),
        reads(CLOCK), reads(SYSTEM), signs(payer),
    )  # fmt: skip
    return create_account(account), _build(_DEPLOY, size_bytes.to_bytes(8, "little"), *accounts)


def build_upgrade(payer: Pubkey, program: Pubkey, buffer: Pubkey) -> Instruction:
    """Put a buffer's bytes in the place of a program's; the buffer's deposit goes to the payer."""
    accounts = (
        writes(find_data_address(program)), writes(program), writes(buffer), writes(payer), reads(RENT), reads(CLOCK),
        signs(payer),
    )  # fmt: skip
    return _build(_UPGRADE, b"", *accounts)


def build_room(payer: Pubkey, program: Pubkey, size_bytes: int) -> Instruction:
    accounts = (writes(find_data_address(program)), writes(program), reads(SYSTEM), signs(payer, writable=True))
    return _build(_EXTEND, size_bytes.to_bytes(4, "little"), *accounts)


def build_end(payer: Pubkey, program: Pubkey) -> Instruction:
    return _build(_SET_AUTHORITY, b"", writes(find_data_address(program)), signs(payer))


def build_close(payer: Pubkey, account: Pubkey, program: Pubkey | None = None) -> Instruction:
    """Close a buffer, or the bytes of a program, to which nothing can come again. The deposit goes to the payer."""
    named = () if program is None else (writes(program),)
    return _build(_CLOSE, b"", writes(account), writes(payer), signs(payer), *named)


def _build(kind: int, data: bytes, *accounts: AccountMeta) -> Instruction:
    return Instruction(UPGRADEABLE, kind.to_bytes(4, "little") + data, list(accounts))
