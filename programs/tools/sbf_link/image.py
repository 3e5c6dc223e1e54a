"""Places a program's sections in a file and resolves what they refer to, as SBPFv0 or SBPFv3 wants it."""

import struct
from dataclasses import dataclass, field

from sbf_link.elf import FILE_HEADER, PROGRAM_HEADER, LinkError, Object, Relocation, Symbol
from sbf_link.instructions import CALL, CALLX, LDDW, OPCODES, SYSCALLS, get_syscall_number

CODE_V3 = 1 << 32  # where SBPFv3 has its code in memory
LOAD_ADDRESS, ADDRESS, RELATIVE, FUNCTION = 1, 2, 8, 10  # types of relocations
_RENAMED = {"__bpf_trap": "abort"}
_GROUPS_V0 = (".text", ".rodata", ".data.rel.ro")
_GROUPS_V3 = (".rodata", ".data.rel.ro", ".text")


@dataclass
class Import:
    """A system call that the program uses."""

    number: int  # of its symbol
    name_at: int  # where its name begins in the table of names


@dataclass
class Image:
    """The bytes of a program, with what its headers have to say about them."""

    data: bytearray
    base: int  # the bytes before the first section, for the headers
    is_v3: bool
    placed: dict[int, int] = field(default_factory=dict)  # section -> offset in the file
    spans: dict[str, tuple[int, int]] = field(default_factory=dict)  # group -> from, to
    dynamic: list[tuple[int, int, int]] = field(default_factory=list)  # of v0: offset, type, number of the symbol
    imports: dict[str, Import] = field(default_factory=dict)
    names: bytearray = field(default_factory=lambda: bytearray(b"\0"))

    @property
    def text(self) -> tuple[int, int]:
        return self.spans[".text"]

    def pad(self, alignment: int = 8) -> None:
        self.data.extend(bytes(-len(self.data) % alignment))

    def get_address(self, offset: int) -> int:
        """Where the program sees a byte of the file; on v0 the loader adds the region."""
        if not self.is_v3:
            return offset
        start = self.text[0]
        return CODE_V3 + offset - start if offset >= start else offset - self.base

    def find(self, symbol: Symbol) -> int:
        """The offset of a symbol in the file."""
        if symbol.section not in self.placed:
            raise LinkError(f"symbol {symbol.name!r} is not in a part of the file that is loaded")
        return self.placed[symbol.section] + symbol.value

    def read(self, kind: str, offset: int) -> int:
        return struct.unpack_from(kind, self.data, offset)[0]

    def write(self, kind: str, offset: int, value: int) -> None:
        struct.pack_into(kind, self.data, offset, value)


def place(source: Object, is_v3: bool) -> Image:
    """The sections, one after another, behind room for the headers."""
    groups = source.get_groups()
    read_only = any(groups[group] for group in _GROUPS_V0[1:])
    headers = (2 if read_only else 1) if is_v3 else 4
    base = FILE_HEADER.size + PROGRAM_HEADER.size * headers
    image = Image(bytearray(base), base, is_v3)
    if is_v3 and read_only:
        image.data.extend(bytes(8))  # nothing is at address 0, so that a reference is never null
    for group in _GROUPS_V3 if is_v3 else _GROUPS_V0:
        image.pad()
        start = len(image.data)
        for index in groups[group]:
            image.pad(max(source.sections[index].alignment, 1))
            image.placed[index] = len(image.data)
            image.data.extend(source.get_bytes(index))
        image.pad()
        image.spans[group] = (start, len(image.data))
    if image.text[0] == image.text[1]:
        raise LinkError("the program has no code")
    return image


def relocate(image: Image, relocation: Relocation) -> None:
    """Resolve one reference."""
    if relocation.section not in image.placed:
        return
    at = image.placed[relocation.section] + relocation.offset
    if relocation.kind == LOAD_ADDRESS:
        target = image.get_address(image.find(relocation.symbol) + image.read("<I", at + 4))
        image.write("<I", at + 4, target & 0xFFFFFFFF)
        image.write("<I", at + 12, target >> 32)
        image.dynamic.append((at, RELATIVE, 0))
    elif relocation.kind == ADDRESS:
        target = image.get_address(image.find(relocation.symbol) + image.read("<Q", at))
        image.write("<Q", at, target if image.is_v3 else target << 32)  # the loader of v0 reads the high word
        image.dynamic.append((at, RELATIVE, 0))
    elif relocation.kind == FUNCTION and image.data[at] == CALL:
        if relocation.symbol.section:
            target = image.find(relocation.symbol) + 8 * (image.read("<i", at + 4) + 1)
            image.write("<i", at + 4, (target - at) // 8 - 1)
        else:
            _call_system(image, at, relocation.symbol.name)
    else:
        raise LinkError(f"relocation of type {relocation.kind} at {at - image.text[0]:#x} is not known")


def _call_system(image: Image, at: int, name: str) -> None:
    name = _RENAMED.get(name, name)
    if name not in SYSCALLS:
        raise LinkError(f"{name} is neither defined nor a system call of Solana")
    if name not in image.imports:
        image.imports[name] = Import(len(image.imports) + 1, len(image.names))
        image.names += name.encode() + b"\0"
    if image.is_v3:
        image.data[at + 1] &= 15
        image.write("<I", at + 4, get_syscall_number(name))
    else:
        image.write("<i", at + 4, -1)
        image.dynamic.append((at, FUNCTION, image.imports[name].number))


def check_instructions(image: Image) -> None:
    """Refuse instructions that SBPF lacks, and put the register of indirect calls where the format has it."""
    at, end = image.text
    while at < end:
        opcode = image.data[at]
        if opcode not in OPCODES:
            raise LinkError(f"instruction {opcode:#x} at {at - image.text[0]:#x} does not exist in SBPF")
        if opcode == CALLX:  # v0 names the register in the immediate value, v3 in the target's field
            register = image.read("<i", at + 4) or image.data[at + 1] & 15
            image.write("<i", at + 4, 0 if image.is_v3 else register)
            image.data[at + 1] = register if image.is_v3 else 0
        at += 16 if opcode == LDDW else 8
