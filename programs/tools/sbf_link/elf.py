"""ELF: the structures, and an object file of LLVM's BPF back end, read."""

import struct
from collections.abc import Iterator
from typing import NamedTuple

FILE_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")
SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")
SYMBOL = struct.Struct("<IBBHQQ")
RELOCATION = struct.Struct("<QQ")
DYNAMIC_TAG = struct.Struct("<QQ")

MACHINE_BPF = 247
RELOCATABLE = 1
SYMBOL_TABLE, WITH_ADDENDS, NO_BYTES, WITHOUT_ADDENDS = 2, 4, 8, 9  # types of sections
ALLOCATED = 2  # a flag of sections: it is part of the program in memory
GROUPS = (".text", ".rodata", ".data.rel.ro")


class LinkError(Exception):
    """The program cannot be a Solana program; the text says why."""


class Section(NamedTuple):
    name_at: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry_size: int


class Symbol(NamedTuple):
    name: str
    section: int  # 0: not defined here
    value: int


class Relocation(NamedTuple):
    section: int
    offset: int
    kind: int
    symbol: Symbol


def _read_text(data: bytes, start: int) -> str:
    return data[start : data.index(b"\0", start)].decode()


class Object:
    """A relocatable object file with exactly the code of one program."""

    def __init__(self, raw: bytes) -> None:
        header = FILE_HEADER.unpack_from(raw)
        if raw[:4] != b"\x7fELF" or header[1:3] != (RELOCATABLE, MACHINE_BPF):
            raise LinkError("the back end made something other than a relocatable BPF object")
        self.raw = raw
        sections_at, number, names_in = header[6], header[12], header[13]
        at = [sections_at + SECTION_HEADER.size * index for index in range(number)]
        self.sections = [Section(*SECTION_HEADER.unpack_from(raw, offset)) for offset in at]
        names = self.get_bytes(names_in)
        self.names = [_read_text(names, section.name_at) for section in self.sections]
        self.symbols = self._read_symbols()

    def _read_symbols(self) -> list[Symbol]:
        table = next(index for index, section in enumerate(self.sections) if section.kind == SYMBOL_TABLE)
        names = self.get_bytes(self.sections[table].link)
        rows = SYMBOL.iter_unpack(self.get_bytes(table))
        return [Symbol(_read_text(names, name_at), section, value) for name_at, _, _, section, value, _ in rows]

    def get_bytes(self, index: int) -> bytes:
        """The bytes of a section; zeros where the file holds none."""
        section = self.sections[index]
        if section.kind == NO_BYTES:
            return bytes(section.size)
        return self.raw[section.offset : section.offset + section.size]

    def get_groups(self) -> dict[str, list[int]]:
        """The sections that a program has in memory, by the group they go to.

        Raises LinkError for writable data, which programs cannot have.
        """
        groups: dict[str, list[int]] = {group: [] for group in GROUPS}
        for index, (section, name) in enumerate(zip(self.sections, self.names, strict=True)):
            if not section.flags & ALLOCATED or not section.size or name.startswith(".eh_frame"):
                continue
            group = next((group for group in GROUPS if name.startswith(group)), None)
            if group is None:
                raise LinkError(f"section {name} has {section.size} bytes of writable data: programs cannot have any")
            groups[group].append(index)
        return groups

    def get_relocations(self) -> Iterator[Relocation]:
        """All relocations of the file, in its order."""
        for index, section in enumerate(self.sections):
            if section.kind == WITH_ADDENDS:
                raise LinkError("the back end wrote relocations with explicit addends, which are not expected")
            if section.kind == WITHOUT_ADDENDS:
                for offset, info in RELOCATION.iter_unpack(self.get_bytes(index)):
                    yield Relocation(section.info, offset, info & 0xFFFFFFFF, self.symbols[info >> 32])
