"""The linker of Solana programs refuses what Solana would not load, when a program is built."""

import struct
from collections.abc import Sequence
from pathlib import Path

import pytest
from sbf_link.elf import FILE_HEADER, RELOCATION, SECTION_HEADER, SYMBOL, LinkError
from sbf_link.instructions import get_syscall_number
from sbf_link.legalize import drop_bodies, legalize
from sbf_link.linker import read_arguments
from sbf_link.program import link
from sbf_link.syntax import count_registers, read_typed, split_arguments

EXIT = bytes.fromhex("9500000000000000")
CALL = bytes.fromhex("85100000ffffffff")
ADD_32 = bytes.fromhex("0400000001000000")  # extends the sign on SBPF, does not on eBPF
FUNCTION = 10


def pack_names(names: Sequence[str]) -> tuple[bytes, list[int]]:
    packed, offsets = b"\0", []
    for name in names:
        offsets.append(len(packed))
        packed += name.encode() + b"\0"
    return packed, offsets


def build_object(code: bytes, *, calls: str = "", data: bytes = b"", entry: str = "entrypoint") -> bytes:
    """An object with one function, which may begin with a call of something that is not defined."""
    names, (entry_at, called_at) = pack_names([entry, calls])
    symbols = (
        bytes(SYMBOL.size) + SYMBOL.pack(entry_at, 0x12, 0, 1, 0, len(code)) + SYMBOL.pack(called_at, 0, 0, 0, 0, 0)
    )
    relocations = RELOCATION.pack(0, 2 << 32 | FUNCTION) if calls else b""
    sections = [  # name, type, flags, bytes, link, info
        ("", 0, 0, b"", 0, 0),
        (".text", 1, 6, code, 0, 0),
        (".data", 1, 3, data, 0, 0),
        (".symtab", 2, 0, symbols, 4, 1),
        (".strtab", 3, 0, names, 0, 0),
        (".rel.text", 9, 0, relocations, 3, 1),
    ]
    section_names, offsets = pack_names([section[0] for section in sections] + [".shstrtab"])
    sections.append((".shstrtab", 3, 0, section_names, 0, 0))
    image, headers = b"", b""
    for (_, kind, flags, content, linked, info), name_at in zip(sections, offsets, strict=True):
        at = FILE_HEADER.size + len(image)
        headers += SECTION_HEADER.pack(name_at, kind, flags, 0, at, len(content), linked, info, 8, 0)
        image += content + bytes(-len(content) % 8)
    magic, sections_at = b"\x7fELF\x02\x01\x01" + bytes(9), FILE_HEADER.size + len(image)
    header = FILE_HEADER.pack(magic, 1, 247, 1, 0, 0, sections_at, 0, 64, 0, 0, 64, len(sections), len(sections) - 1)
    return header + image + headers


@pytest.mark.parametrize("sbpf", [0, 3])
def test_a_function_with_a_system_call_becomes_a_program(sbpf: int) -> None:
    program = link(build_object(CALL + EXIT, calls="sol_log_"), sbpf)
    assert program[:4] == b"\x7fELF"
    assert struct.unpack_from("<I", program, 48) == (sbpf,)  # the format, in the header's flags
    named = struct.pack("<I", get_syscall_number("sol_log_")) if sbpf == 3 else b"sol_log_\0"
    assert named in program


def test_system_calls_have_the_numbers_of_the_runtime() -> None:
    assert get_syscall_number("sol_log_") == 0x207559BD
    assert get_syscall_number("abort") == 0xB6FC1A11


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (build_object(CALL + EXIT, calls="malloc"), "malloc is neither defined nor a system call"),
        (build_object(ADD_32 + EXIT), "instruction 0x4 at 0x0 does not exist in SBPF"),
        (build_object(EXIT, data=bytes(17)), ".data has 17 bytes of writable data"),
        (build_object(EXIT, entry="main"), "no function 'entrypoint'"),
        (build_object(b""), "no code"),
        (b"\x7fELF" + bytes(100), "something other than a relocatable BPF object"),
    ],
)
def test_what_solana_would_not_load_is_refused(source: bytes, reason: str) -> None:
    with pytest.raises(LinkError, match=reason):
        link(source, sbpf=0)


@pytest.mark.parametrize(
    ("operation", "reason"),
    [
        ("sdiv i128 %a, %b", "signed division of 128 bits"),
        ("mul i256 %a, %b", "mul of 256 bits"),
        ("fptosi double %x to i32", "narrow integer"),
    ],
)
def test_an_operation_without_a_replacement_is_refused(operation: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        legalize(f"define i64 @f(i128 %a, i128 %b) {{\n  %r = {operation}\n}}\n")


def test_arguments_beyond_five_registers_travel_in_memory() -> None:
    seven = ", ".join(f"i64 %{name}" for name in "abcdefg")
    text = f"define void @f({seven}) {{\nstart:\n  call void @f({seven})\n  ret void\n}}\n"
    lines = legalize(text).splitlines()
    assert lines[0] == "define void @f(i64 %a, i64 %b, i64 %c, i64 %d, ptr %__sbf_pack) {"
    (call,) = (line for line in lines if "call void @f" in line)
    assert call.count("i64") == 4
    assert "alloca [24 x i8], align 8" in "\n".join(lines)


def test_memory_functions_are_only_declared() -> None:
    text = "define ptr @memcpy(ptr %a, ptr %b, i64 %n) {\n  ret ptr %a\n}\ndefine void @f() {\n  ret void\n}\n"
    assert drop_bodies(text, ["memcpy"]) == "declare ptr @memcpy(ptr, ptr, i64)\ndefine void @f() {\n  ret void\n}\n"


def test_types_and_arguments_are_read_as_llvm_writes_them() -> None:
    assert split_arguments("i64 %a, { i64, i8 } %b, ptr align 8 %c") == ["i64 %a", "{ i64, i8 } %b", "ptr align 8 %c"]
    assert read_typed("ptr noundef align 8 dereferenceable(16) %x") == ("ptr", "%x")
    assert read_typed("i64 add (i64 1, i64 2)") == ("i64", "add (i64 1, i64 2)")
    assert count_registers("{ i64, [2 x i128] }") == 5


def test_rustcs_arguments_are_read(tmp_path: Path) -> None:
    bitcode, listing = tmp_path / "a.o", tmp_path / "symbols.o"
    bitcode.write_bytes(b"BC\xc0\xde")
    listing.write_bytes(b"\x7fELF")
    given = ["--export-symbols", "x", "-L", "y", str(bitcode), str(listing), "b.rlib", "-O3", "-o", "out.so"]
    objects, libraries, output = read_arguments(given)
    assert (objects, [library.name for library in libraries], str(output)) == ([bitcode], ["b.rlib"], "out.so")
