"""What a model's headers and small files say, whether or not a run can train it; no torch here."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psyche.core.encoding.manifest import TensorEntry, encode_manifest
from psyche.errors import TrainerError
from psyche.modeling.first_weights import StoredTensor, compute_blob_ids, read_layout, read_stored_tensors
from psyche.modeling.model_check import check_model_files
from psyche.modeling.model_files import ModelFiles, read_small_files
from psyche.modeling.snapshot import CONFIG_NAME, get_file_entries
from psyche.modeling.user_files import find_tokens
from psyche.wire.crypto import blake3_hash, compute_state_digest
from psyche.wire.tokenizer_files import TOKENIZER_NAME, read_json_table, read_token_ids


class WatchedFiles:
    """Files of which is told how many bytes have been read."""

    def __init__(self, files: ModelFiles, tell: Callable[[int], None]) -> None:
        self.address = files.address
        self.revision = files.revision
        self.piece_bytes = files.piece_bytes
        self._files = files
        self._tell = tell
        self._read_bytes = 0

    def get_sizes(self) -> Mapping[str, int]:
        return self._files.get_sizes()

    def read(self, name: str, start: int, end: int) -> bytes:
        return b"".join(self.read_parts(name, start, end))

    def read_parts(self, name: str, start: int, end: int) -> Sequence[bytes]:
        parts = self._files.read_parts(name, start, end)
        self._read_bytes += end - start
        self._tell(self._read_bytes)
        return parts


class _RememberedFiles(WatchedFiles):
    """Files of which each part is read once, for several readers of the same headers."""

    def __init__(self, files: ModelFiles) -> None:
        super().__init__(files, lambda _: None)
        self._known: dict[tuple[str, int, int], bytes] = {}

    def read(self, name: str, start: int, end: int) -> bytes:
        if (name, start, end) not in self._known:
            self._known[name, start, end] = super().read(name, start, end)
        return self._known[name, start, end]


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """`problems` are why a run refuses the model; `blob_ids` is empty where the values were not read.

    `chain` is the chain digest of weights that a client has uploaded, zero for all others.
    """

    address: str
    sizes_bytes: Mapping[str, int]
    tensors: Mapping[str, StoredTensor]
    small: Mapping[str, bytes]
    chain: bytes
    problems: tuple[str, ...]
    blob_ids: Mapping[str, bytes]

    @property
    def parameters(self) -> int:
        return sum(math.prod(tensor.dims) for tensor in self.tensors.values())

    def compute_digest(self) -> bytes:
        """The digest that a run has on record of these weights, if their values were read (S2, S11)."""
        entries = [TensorEntry(name, tensor.dims, self.blob_ids[name]) for name, tensor in self.tensors.items()]
        root = blake3_hash(encode_manifest(entries, get_file_entries(self.small)))
        return compute_state_digest(self.chain, root)

    @property
    def config(self) -> Mapping[str, Any]:
        return read_json_table(self.small.get(CONFIG_NAME))

    def count_dtypes(self) -> dict[str, int]:
        """The parameters of each type."""
        found: dict[str, int] = {}
        for tensor in self.tensors.values():
            found[tensor.dtype] = found.get(tensor.dtype, 0) + math.prod(tensor.dims)
        return found

    def describe_tokenizer(self) -> str:
        if TOKENIZER_NAME not in self.small:
            return "none that is read without a library" if "tokenizer.model" in self.small else "none"
        ids = read_token_ids(self.small[TOKENIZER_NAME])
        roles = ", ".join(f"{role.removesuffix('_token')} {token}" for role, token in find_tokens(self.small).items())
        return f"{len(ids):,} tokens{f'; {roles}' if roles else ''}"


def read_facts(files: ModelFiles, read_values: Callable[[int, int], None] | None = None) -> ModelFacts:
    """Read a model's headers and small files and, with `read_values`, its values too, for the blob ids.

    `read_values` is told how many bytes of how many have been read.

    Raises:
        StorageError: the storage does not give the files.
        TrainerError: the folder cannot be read.
    """
    known = _RememberedFiles(files)
    sizes_bytes = known.get_sizes()
    tensors: Mapping[str, StoredTensor] = {}
    small: Mapping[str, bytes] = {}
    chain, problems = b"", list(check_model_files(known).problems)
    try:
        layout = read_layout(known)
        tensors, small, chain = layout.tensors, layout.small, layout.chain
    except TrainerError as error:
        problems = problems or [str(error)]
        tensors, small = _try(read_stored_tensors, known), _try(read_small_files, known)
    ids: Mapping[str, bytes] = {}
    if read_values is not None and tensors:
        total = sum(sizes_bytes[name] for name in {tensor.file for tensor in tensors.values()})
        ids = compute_blob_ids(WatchedFiles(files, lambda done: read_values(done, total)), tensors)
    return ModelFacts(files.address, sizes_bytes, tensors, small, chain, tuple(problems), ids)


def _try(read: Callable[[ModelFiles], Mapping[str, Any]], files: ModelFiles) -> Mapping[str, Any]:
    try:
        return read(files)
    except TrainerError:
        return {}
