"""A program's IDL, spec 0.1.0 of Anchor: checked when it is loaded, its types as Borsh forms.

program = load_program("coordinator")
program.instructions["join_run"].arguments
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
from solders.pubkey import Pubkey

import psyche
from psyche.backends.solana.interface.addresses import SOURCE_IDS
from psyche.backends.solana.interface.borsh import (
    BoolForm,
    BorshForm,
    BytesForm,
    KeyForm,
    ListForm,
    NumberForm,
    OptionForm,
    StructForm,
    TextForm,
)
from psyche.errors import ConfigError

NAMES: Final[Mapping[str, Pubkey]] = SOURCE_IDS._asdict()  # with the ids of the sources
_PACKAGE: Final = Path(psyche.__file__).parent
_FOLDERS: Final = (_PACKAGE / "programs", _PACKAGE.parent / "programs" / "built")  # of a wheel, of a checkout


def find_file(name: str) -> Path:
    """A file of the builds: `psyche_NAME.so` is a program, `psyche_NAME.json` its IDL."""
    for place in _FOLDERS:
        if (place / name).is_file():
            return place / name
    raise ConfigError(f"this installation has no {name}; `scripts/build-programs` in a checkout builds it")


DISCRIMINATOR_BYTES: Final = 8
MAX_ARRAY: Final = 10 << 20  # no account has more bytes
_SIMPLE: Final[Mapping[str, BorshForm]] = {
    "u8": NumberForm(1), "u16": NumberForm(2), "u32": NumberForm(4), "u64": NumberForm(8),
    "i64": NumberForm(8, signed=True), "bool": BoolForm(), "pubkey": KeyForm(), "string": TextForm(),
    "bytes": BytesForm(),
}  # fmt: skip


_Discriminator = Annotated[
    list[Annotated[int, msgspec.Meta(ge=0, lt=256)]],
    msgspec.Meta(min_length=DISCRIMINATOR_BYTES, max_length=DISCRIMINATOR_BYTES),
]


class _Field(msgspec.Struct):
    name: str
    type: Any


class _Body(msgspec.Struct):
    kind: Literal["struct"]  # no program of ours has an enum
    fields: list[_Field] = []


class _Type(msgspec.Struct):
    name: str
    type: _Body


class _Named(msgspec.Struct):
    name: str
    discriminator: _Discriminator


class AccountUse(msgspec.Struct, frozen=True):
    name: str
    signer: bool = False
    writable: bool = False


class _Instruction(_Named):
    accounts: list[AccountUse]
    args: list[_Field]


class _Error(msgspec.Struct):
    code: int
    name: str
    msg: str


class _Metadata(msgspec.Struct):
    spec: Literal["0.1.0"]


class _Idl(msgspec.Struct):
    address: str
    metadata: _Metadata
    instructions: list[_Instruction]
    accounts: list[_Named] = []
    events: list[_Named] = []
    errors: list[_Error] = []
    types: list[_Type] = []


class DataKind(NamedTuple):
    name: str
    discriminator: bytes
    form: BorshForm


class InstructionKind(NamedTuple):
    discriminator: bytes
    accounts: list[AccountUse]
    arguments: StructForm


class ProgramInterface(NamedTuple):
    address: str
    instructions: Mapping[str, InstructionKind]
    accounts: Mapping[str, DataKind]
    events: Mapping[bytes, DataKind]  # by discriminator
    errors: Mapping[int, tuple[str, str]]  # by number: name and sentence


def load_idl(program: str) -> dict[str, Any]:
    """The IDL of the coordinator, authorizer or treasurer as it is, for the tools of others."""
    return msgspec.json.decode(find_file(f"psyche_{program}.json").read_bytes())


@cache
def load_program(program: str) -> ProgramInterface:
    path = find_file(f"psyche_{program}.json")
    try:
        found = read_idl(path.read_bytes())
    except (ConfigError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{path}: {error}; install Psyche again") from error
    if found.address != str(NAMES[program]):
        raise ConfigError(f"{path}: is of {found.address}, and the {program} is {NAMES[program]}")
    return found


def read_idl(raw: bytes) -> ProgramInterface:
    idl = msgspec.json.decode(raw, type=_Idl)
    types = _Types(idl.types)
    calls = {
        one.name: InstructionKind(bytes(one.discriminator), one.accounts, types.read_fields(one.name, one.args))
        for one in idl.instructions
    }
    accounts, events = (
        [DataKind(one.name, bytes(one.discriminator), types.find(one.name)) for one in several]
        for several in (idl.accounts, idl.events)
    )
    return ProgramInterface(
        idl.address, calls, {one.name: one for one in accounts}, {one.discriminator: one for one in events},
        {one.code: (one.name, one.msg) for one in idl.errors},
    )  # fmt: skip


class _Types:
    """The types of an IDL by name, each read once."""

    def __init__(self, types: list[_Type]) -> None:
        self._bodies = {one.name: one.type for one in types}
        self._forms: dict[str, BorshForm] = {}

    def find(self, name: str) -> BorshForm:
        if name not in self._forms:
            if name not in self._bodies:
                raise ConfigError(f"type {name}: is not defined, or contains itself")
            self._forms[name] = self.read_fields(name, self._bodies.pop(name).fields)
        return self._forms[name]

    def read_fields(self, where: str, fields: list[_Field]) -> StructForm:
        return StructForm({one.name: self._read_type(f"{where}.{one.name}", one.type) for one in fields})

    def _read_type(self, where: str, kind: Any) -> BorshForm:
        match kind:
            case str() if kind in _SIMPLE:
                return _SIMPLE[kind]
            case {"option": inner}:
                return OptionForm(self._read_type(where, inner))
            case {"vec": inner}:
                return ListForm(self._read_type(where, inner))
            case {"array": [inner, int(count)]} if 0 <= count <= MAX_ARRAY:
                return BytesForm(count) if inner == "u8" else ListForm(self._read_type(where, inner), count)
            case {"defined": {"name": str(name)}}:
                return self.find(name)
        raise ConfigError(f"{where}: the type {str(kind)[:60]!r} is unknown")
