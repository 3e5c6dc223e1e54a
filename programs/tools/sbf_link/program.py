"""The file of a program: headers and tables around its image, as SBPFv0 or SBPFv3."""

from collections.abc import Iterable

from sbf_link.elf import (
    DYNAMIC_TAG,
    FILE_HEADER,
    MACHINE_BPF,
    PROGRAM_HEADER,
    RELOCATION,
    SECTION_HEADER,
    SYMBOL,
    LinkError,
    Object,
)
from sbf_link.image import CODE_V3, Image, check_instructions, place, relocate

SHARED_OBJECT = 3
LOADED, DYNAMIC = 1, 2  # types of program headers
_SECTION_KINDS = {  # name -> type, flags
    ".text": (1, 6),
    ".rodata": (1, 2),
    ".data.rel.ro": (1, 3),
    ".dynamic": (6, 3),
    ".dynsym": (11, 2),
    ".dynstr": (3, 2),
    ".rel.dyn": (9, 2),
    ".shstrtab": (3, 0),
}
_RELOCATIONS_AT, _RELOCATIONS_SIZE, _RELOCATION_SIZE = 17, 18, 19
_SYMBOLS_AT, _SYMBOL_SIZE, _NAMES_AT, _NAMES_SIZE, _END = 6, 11, 5, 10, 0
Placed = tuple[str, int, int]  # a section's name, from, to


def link(raw: bytes, sbpf: int, entry: str = "entrypoint") -> bytes:
    """The program in an object file of LLVM's BPF back end (-mcpu=v2), ready for Solana.

    `sbpf` is the version of the format, 0 or 3. Raises LinkError where the program has what Solana does not load.
    """
    source = Object(raw)
    image = place(source, is_v3=sbpf == 3)
    for relocation in source.get_relocations():
        relocate(image, relocation)
    check_instructions(image)
    start = next((image.find(one) for one in source.symbols if one.name == entry and one.section), None)
    if start is None:
        raise LinkError(f"the program has no function {entry!r}")
    return _finish_v3(image, start) if image.is_v3 else _finish_v0(image, start)


def _pack_file_header(image: Image, start: int, headers: int, sections_at: int = 0, sections: int = 0) -> bytes:
    magic = b"\x7fELF\x02\x01\x01" + bytes(9)
    flags = 3 if image.is_v3 else 0
    entry = image.get_address(start)
    sizes = FILE_HEADER.size, PROGRAM_HEADER.size, headers, SECTION_HEADER.size
    last = max(sections - 1, 0)  # the section with the names of sections
    return FILE_HEADER.pack(
        magic, SHARED_OBJECT, MACHINE_BPF, 1, entry, FILE_HEADER.size, sections_at, flags, *sizes, sections, last
    )


def _pack_segment(kind: int, flags: int, offset: int, address: int, size: int, alignment: int = 0x1000) -> bytes:
    return PROGRAM_HEADER.pack(kind, flags, offset, address, address, size, size, alignment)


def _finish_v3(image: Image, start: int) -> bytes:
    text, end = image.text
    segments = [_pack_segment(LOADED, 4, image.base, 0, text - image.base)] if text > image.base else []
    segments.append(_pack_segment(LOADED, 1, text, CODE_V3, end - text))
    image.data[: image.base] = _pack_file_header(image, start, len(segments)) + b"".join(segments)
    return bytes(image.data)


def _finish_v0(image: Image, start: int) -> bytes:
    placed: list[Placed] = [(name, *span) for name, span in image.spans.items() if span[0] != span[1]]
    data_end = len(image.data)
    for name, content in _make_dynamic_tables(image, data_end):
        image.pad()
        placed.append((name, len(image.data), len(image.data) + len(content)))
        image.data.extend(content)
    dynamic_end = len(image.data)
    sections_at = _append_sections(image, placed)
    spans = {name: (begin, end) for name, begin, end in placed}
    (text, end), (dynamic, tags_end), (symbols, _) = (spans[name] for name in (".text", ".dynamic", ".dynsym"))
    image.data[: image.base] = (
        _pack_file_header(image, start, 4, sections_at, len(placed) + 1)
        + _pack_segment(LOADED, 5, text, text, end - text)
        + _pack_segment(LOADED, 4, end, end, data_end - end)
        + _pack_segment(LOADED, 4, symbols, symbols, dynamic_end - symbols)
        + _pack_segment(DYNAMIC, 6, dynamic, dynamic, tags_end - dynamic, 8)
    )
    return bytes(image.data)


def _make_dynamic_tables(image: Image, start: int) -> list[tuple[str, bytes]]:
    """The tables that the loader resolves references by; the first begins at `start` in the file."""
    symbols = bytes(SYMBOL.size)
    symbols += b"".join(SYMBOL.pack(one.name_at, 0x10, 0, 0, 0, 0) for one in image.imports.values())
    relocations = b"".join(RELOCATION.pack(at, number << 32 | kind) for at, kind, number in sorted(image.dynamic))
    symbols_at = start + DYNAMIC_TAG.size * (8 if relocations else 5)
    names_at = symbols_at + len(symbols)
    relocations_at = names_at + len(image.names) + -len(image.names) % 8
    tags = [(_SYMBOLS_AT, symbols_at), (_SYMBOL_SIZE, SYMBOL.size)]
    tags += [(_NAMES_AT, names_at), (_NAMES_SIZE, len(image.names)), (_END, 0)]
    tables = [(".dynsym", symbols), (".dynstr", bytes(image.names))]
    if relocations:
        sizes = [(_RELOCATIONS_SIZE, len(relocations)), (_RELOCATION_SIZE, RELOCATION.size)]
        tags = [(_RELOCATIONS_AT, relocations_at), *sizes, *tags]
        tables.append((".rel.dyn", relocations))
    return [(".dynamic", b"".join(DYNAMIC_TAG.pack(*tag) for tag in tags)), *tables]


def _pack_names(names: Iterable[str]) -> tuple[bytes, list[int]]:
    packed, offsets = bytearray(b"\0"), []
    for name in names:
        offsets.append(len(packed))
        packed += name.encode() + b"\0"
    return bytes(packed), offsets


def _append_sections(image: Image, placed: list[Placed]) -> int:
    """Append the table of sections, in the order of the file; returns where it begins."""
    names, offsets = _pack_names([*(name for name, _, _ in placed), ".shstrtab"])
    image.pad()
    placed.append((".shstrtab", len(image.data), len(image.data) + len(names)))
    image.data.extend(names)
    image.pad()
    sections_at = len(image.data)
    index = {name: number + 1 for number, (name, _, _) in enumerate(placed)}
    linked = {  # the section that it refers to, a number, the size of an entry
        ".dynamic": (index[".dynstr"], 0, DYNAMIC_TAG.size),
        ".dynsym": (index[".dynstr"], 1, SYMBOL.size),
        ".rel.dyn": (index[".dynsym"], 0, RELOCATION.size),
    }
    image.data.extend(bytes(SECTION_HEADER.size))
    for (name, begin, end), name_at in zip(placed, offsets, strict=True):
        kind, flags = _SECTION_KINDS[name]
        other, info, entry_size = linked.get(name, (0, 0, 0))
        address, alignment = (begin if flags & 2 else 0), (1 if name == ".dynstr" else 8)
        image.data.extend(
            SECTION_HEADER.pack(name_at, kind, flags, address, begin, end - begin, other, info, alignment, entry_size)
        )
    return sections_at
