"""Which programs are Psyche's on which cluster, as a file of the run's owner vouches for, or this package.

A program knows its own id and those of others as 32 bytes among its constants, or as four numbers of 64 bits that
instructions load. Replacing them leaves everything else as it is, so one build serves every chain. It can be taken
back: so a program on any chain is compared with the digest of the build.
"""

import re
import struct
import tomllib
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import msgspec
from solders.pubkey import Pubkey

from psyche.backends.solana.interface.addresses import SOURCE_IDS, ProgramIds, parse_key
from psyche.backends.solana.interface.idl import find_file
from psyche.durable import read_file, replace_file
from psyche.errors import ConfigError
from psyche.telemetry.text import describe_parse_failure

_LOAD = rb"\x18[\x00-\x0f]\x00\x00"  # of a number into a register: its halves stand behind this and behind four zeros
_WORDS = 4


def replace_ids(code: bytes, old: ProgramIds, new: ProgramIds) -> bytes:
    """Put the ids `new` where a program has the ids `old`."""
    changes: dict[bytes, bytes] = {}
    for before, after in zip(old, new, strict=True):
        changes[bytes(before)] = bytes(after)
        changes |= zip(_split(bytes(before)), _split(bytes(after)), strict=True)
    return _compile(changes).sub(lambda found: _replace(found[0], changes), code)


def _split(raw: bytes) -> list[bytes]:
    return [raw[8 * word : 8 * word + 8] for word in range(_WORDS)]


def _compile(changes: Mapping[bytes, bytes]) -> re.Pattern[bytes]:
    whole = (re.escape(one) for one in changes if len(one) > 8)
    halves = (re.escape(one[:4]) + rb"\x00{4}" + re.escape(one[4:]) for one in changes if len(one) == 8)
    return re.compile(b"|".join([*whole, _LOAD + b"(?:" + b"|".join(halves) + b")"]), re.DOTALL)


def _replace(found: bytes, changes: Mapping[bytes, bytes]) -> bytes:
    if found in changes:
        return changes[found]
    number = changes[found[4:8] + found[12:]]
    return struct.pack("<4s4s4x4s", found[:4], number[:4], number[4:])


KNOWN: Final = Path(__file__).with_name("clusters.toml")
SBPF_FOLDERS: Final = ("", "v3/")  # of the builds: the same programs in both formats that chains take
MAX_FILE_BYTES: Final = 1 << 16
NOBODY: Final = "nobody"
_Text = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9 ._:\[\]-]{1,100}$")]


class VouchedProgram(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A program that somebody vouches for. `sha256`: of its bytes with the ids of the sources, as in SHA256SUMS."""

    address: str
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    size_bytes: Annotated[int, msgspec.Meta(ge=1, le=10 << 20)]
    upgrade_authority: str


class ClusterPrograms(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: _Text
    genesis_hash: _Text
    programs: dict[str, VouchedProgram] = {}


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    cluster: list[ClusterPrograms]


class Vouching(NamedTuple):
    """The programs of a chain, and what vouches for them."""

    ids: ProgramIds
    builds: Mapping[str, list[tuple[int, str]]]  # size and digest of each build that may be there, by program
    source: str  # of this, for people
    authorities: Mapping[str, str] = {}  # who may change which program; empty: the source does not say

    def compute_digest(self, code: bytes, size_bytes: int) -> str:
        """The digest of a program on the chain with the ids of the sources put back, without the zeros behind it."""
        body = code[:size_bytes]
        source = replace_ids(body, self.ids, SOURCE_IDS)
        is_whole = not any(code[size_bytes:]) and replace_ids(source, SOURCE_IDS, self.ids) == body
        return sha256(source if is_whole else code).hexdigest()


def choose_programs(genesis_hash: str, file: Path | None) -> Vouching:
    """Choose the programs of the chain with this genesis hash: what `file` says, what is known, else those shipped."""
    clusters = read_program_ids(file or KNOWN)
    source = "this version of Psyche" if file is None else str(file)
    for one in clusters:
        if one.genesis_hash == genesis_hash and one.programs:
            ids = ProgramIds(**{name: Pubkey.from_string(program.address) for name, program in one.programs.items()})
            builds = {name: [(program.size_bytes, program.sha256)] for name, program in one.programs.items()}
            return Vouching(ids, builds, source, {name: p.upgrade_authority for name, p in one.programs.items()})
    if file is None:
        return Vouching(SOURCE_IDS, {name: _list_builds(name) for name in ProgramIds._fields}, source)
    has = ", ".join(f"{one.name} (genesis hash {one.genesis_hash})" for one in clusters)
    raise ConfigError(
        f"--program-ids {file}: is for {has or 'no chain'}, and this chain has the genesis hash {genesis_hash}: check "
        "--rpc, or name the file that the run's owner gave you for this chain"
    )


@cache
def read_digests() -> Mapping[str, str]:
    """The digests of what is shipped, by file."""
    lines = find_file("SHA256SUMS").read_text(encoding="utf-8").splitlines()
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}


def _list_builds(program: str) -> list[tuple[int, str]]:
    files = [f"{folder}psyche_{program}.so" for folder in SBPF_FOLDERS]
    return [(find_file(one).stat().st_size, read_digests()[one]) for one in files]


def read_program_ids(path: Path) -> list[ClusterPrograms]:
    raw = read_file(path, MAX_FILE_BYTES)
    try:
        found = msgspec.convert(tomllib.loads(raw.decode()), _File).cluster
        for cluster in found:
            _check(cluster)
    except (ConfigError, ValueError, RecursionError, msgspec.ValidationError) as error:
        what = describe_parse_failure(error)
        raise ConfigError(f"{path}: {what}; `psyche dev deploy` writes such a file") from error
    return found


def _check(cluster: ClusterPrograms) -> None:
    for name, one in cluster.programs.items():
        parse_key(one.address, f"{cluster.name}.{name}.address")
        if one.upgrade_authority != NOBODY:
            parse_key(one.upgrade_authority, f"{cluster.name}.{name}.upgrade_authority")
    addresses = {name: one.address for name, one in cluster.programs.items()}
    if addresses and (set(addresses) != set(ProgramIds._fields) or len(set(addresses.values())) < len(addresses)):
        raise ConfigError(f"{cluster.name}: must have {', '.join(ProgramIds._fields)}, each at an address of its own")


def write_program_ids(path: Path, cluster: ClusterPrograms) -> None:
    """Write a cluster into a file of program ids, in the place of its former entry; the others stay."""
    former = read_program_ids(path) if path.exists() else []
    lines = ["# Psyche's programs on a chain. Members of a run there name this file with --program-ids."]
    for one in (*(one for one in former if one.genesis_hash != cluster.genesis_hash), cluster):
        lines += ["", "[[cluster]]", f'name = "{one.name}"', f'genesis_hash = "{one.genesis_hash}"']
        for name, program in one.programs.items():
            fields = msgspec.structs.asdict(program).items()
            lines += ["", f"[cluster.programs.{name}]"]
            lines += [f"{key} = {msgspec.json.encode(value).decode()}" for key, value in fields]
    replace_file(path, ("\n".join(lines) + "\n").encode(), path.with_name(f".{path.name}.tmp"))


def name_cluster(genesis_hash: str) -> str:
    """The name of a cluster that others share; empty: it is none that is known."""
    return next((one.name for one in read_program_ids(KNOWN) if one.genesis_hash == genesis_hash), "")
