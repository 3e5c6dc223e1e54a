"""Instructions in the words of their programs.

A program's entry has the first bytes of an instruction in hex, then its name and the names of its accounts and fields.
`*` is before the authority: several that sign for it may follow. `?` is behind what may be missing.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import base58
from solders.pubkey import Pubkey

from psyche.backends.solana.interface.borsh import BorshForm, KeyForm, NumberForm, OptionForm
from psyche.backends.solana.programs.loader import UPGRADEABLE
from psyche.core.encoding.reader import Reader
from psyche.errors import WireError
from psyche.localchain.tokens import TOKEN, TOKEN_2022, describe_amount

_MEMO: Final = {
    "MemoSq4gqABAXKb96qnH8TysNcWxMyWCqXgDLGmfcHr",
    "Memo1UhkJRfHyvLMcVucJwxXeuD728EqVDDwQDxFMNo",
}
_SYSTEM: Final = {
    "00000000": "createAccount source newAccount lamports:u64 space:u64 owner:key",
    "01000000": "assign account owner:key",
    "02000000": "transfer source destination lamports:u64",
    "03000000": "createAccountWithSeed source newAccount base:key seed:text lamports:u64 space:u64 owner:key",
    "08000000": "allocate account space:u64",
}
_TOKEN: Final = {
    "00": "initializeMint mint rentSysvar decimals:u8 mintAuthority:key freezeAuthority?:key?",
    "01": "initializeAccount account mint owner rentSysvar",
    "03": "transfer source destination *authority amount:amount",
    "04": "approve source delegate *owner amount:amount",
    "05": "revoke source *owner",
    "0600": "setAuthority mint *authority authorityType=mintTokens newAuthority:key?",
    "0601": "setAuthority mint *authority authorityType=freezeAccount newAuthority:key?",
    "0602": "setAuthority account *authority authorityType=accountOwner newAuthority:key?",
    "0603": "setAuthority account *authority authorityType=closeAccount newAuthority:key?",
    "07": "mintTo mint account *mintAuthority amount:amount",
    "08": "burn account mint *authority amount:amount",
    "09": "closeAccount account destination *owner",
    "0a": "freezeAccount account mint *freezeAuthority",
    "0b": "thawAccount account mint *freezeAuthority",
    "0c": "transferChecked source mint destination *authority tokenAmount:tokens",
    "0d": "approveChecked source mint delegate *owner tokenAmount:tokens",
    "0e": "mintToChecked mint account *mintAuthority tokenAmount:tokens",
    "0f": "burnChecked account mint *authority tokenAmount:tokens",
    "11": "syncNative account",
    "12": "initializeAccount3 account mint owner:key",
    "14": "initializeMint2 mint decimals:u8 mintAuthority:key freezeAuthority?:key?",
    "15": "getAccountDataSize mint",
    "16": "initializeImmutableOwner account",
}
_ASSOCIATED: Final = {
    "00": "create source account wallet mint systemProgram tokenProgram",
    "01": "createIdempotent source account wallet mint systemProgram tokenProgram",
}
_LOADER: Final = {
    "00000000": "initializeBuffer account authority?",
    "02000000": "deployWithMaxDataLen payerAccount programDataAccount programAccount bufferAccount rentSysvar "
    "clockSysvar systemProgram authority maxDataLen:u64",
    "03000000": "upgrade programDataAccount programAccount bufferAccount spillAccount rentSysvar clockSysvar authority",
    "04000000": "setAuthority account authority newAuthority?",
    "05000000": "close account recipient authority? programAccount?",
    "06000000": "extendProgram programDataAccount programAccount systemProgram? payerAccount? additionalBytes:u32",
}
PROGRAMS: Final[dict[str, tuple[str, dict[str, str]]]] = {
    str(Pubkey.default()): ("system", _SYSTEM),
    str(TOKEN): ("spl-token", _TOKEN),
    str(TOKEN_2022): ("spl-token", _TOKEN),
    "ATokenGPvbdGVxr1b2hvZbsiqW5xWH25efTNsLJA8knL": ("spl-associated-token-account", _ASSOCIATED),
    str(UPGRADEABLE): ("bpf-upgradeable-loader", _LOADER),
}


def parse_instruction(shown: dict[str, Any], keys: Sequence[Pubkey]) -> dict[str, Any]:
    """An instruction as its program means it; with accounts and data of programs that are unknown here.

    Args:
        shown: the instruction in the form of `json`.
        keys: the transaction's accounts, to which the instruction refers by number.
    """
    program, accounts = str(keys[shown["programIdIndex"]]), [str(keys[index]) for index in shown["accounts"]]
    data, told = base58.b58decode(shown["data"]), {"programId": program, "stackHeight": shown["stackHeight"]}
    if program in _MEMO:
        return {**told, "program": "spl-memo", "parsed": data.decode(errors="replace")}
    name, kinds = PROGRAMS.get(program, ("", dict[str, str]()))
    for size in (4, 2, 1):
        if (words := kinds.get((data or bytes(1))[:size].hex())) is not None:
            try:
                return {**told, "program": name, "parsed": _tell(words.split(), accounts, data[size:])}
            except WireError:
                break
    return {**told, "accounts": accounts, "data": shown["data"]}


def _tell(words: list[str], accounts: Sequence[str], body: bytes) -> dict[str, Any]:
    names = [word for word in words[1:] if ":" not in word and "=" not in word]
    if len(accounts) < sum(not name.endswith("?") for name in names):
        raise WireError("accounts are missing")
    info: dict[str, Any] = {name.strip("*?"): account for name, account in zip(names, accounts, strict=False)}
    if names[-1].startswith("*") and len(accounts) > len(names):
        authority = names[-1][1:]
        info[f"multisig{authority[0].upper()}{authority[1:]}"] = info.pop(authority)
        info["signers"] = list(accounts[len(names) :])
    info |= dict(word.split("=") for word in words if "=" in word)
    return {"type": words[0], "info": info | read_fields((word for word in words if ":" in word), body)}


# --- fields, described by words such as `lamports:u64 owner:key` --------------------------------------------------

_FORMS: Final[dict[str, BorshForm]] = {
    "u8": NumberForm(1), "u32": NumberForm(4), "u64": NumberForm(8), "i64": NumberForm(8, signed=True),
    "key": KeyForm(), "key?": OptionForm(KeyForm()),
}  # fmt: skip


def read_fields(words: Iterable[str], raw: bytes) -> dict[str, Any]:
    """Read the fields that words name; one whose name ends with `?` is left out if it is not set.

    Raises:
        WireError: the bytes have other fields.
    """
    reader, found = Reader(raw), dict[str, Any]()
    for word in words:
        name, _, kind = word.partition(":")
        value = _read(kind, reader, name)
        if value is not None or not name.endswith("?"):
            found[name.removesuffix("?")] = value
    return found


def _read(kind: str, reader: Reader, name: str) -> Any:
    if kind == "amount":
        return str(reader.take_number(8, name))
    if kind == "tokens":
        return describe_amount(reader.take_number(8, name), reader.take_number(1, name))
    if kind == "text":
        return reader.take(reader.take_number(8, name), name).decode(errors="replace")
    value = _FORMS[kind].read(reader, name)
    return str(value) if isinstance(value, Pubkey) else value
