"""Snapshots without torch: reading, listing, assembling, and what a killed process leaves behind."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kits.power_loss import watch_disk

from psyche.core.encoding.manifest import MAX_MODEL_FILES_BYTES, TensorEntry, encode_manifest
from psyche.errors import TrainerError
from psyche.modeling.snapshot import (
    INFO_NAME,
    SnapshotInfo,
    assemble_snapshot,
    clean_leftovers,
    get_file_entries,
    get_tensor_path,
    list_snapshots,
    read_file_entries,
    read_model_files,
    read_snapshot_files,
    read_snapshot_info,
    write_folder,
)
from psyche.wire.crypto import blake3_hash, blob_id_of

WEIGHTS = {"a": ((2, 3), bytes(range(24))), "b": ((5,), bytes(20))}
MODEL_FILES = {"config.json": b"{}", "tokenizer.json": b"[]"}
PARTS = {name: raw for name, (_, raw) in WEIGHTS.items()} | MODEL_FILES


def _manifest() -> bytes:
    entries = (TensorEntry(name, dims, blob_id_of(raw)) for name, (dims, raw) in WEIGHTS.items())
    return encode_manifest(entries, get_file_entries(MODEL_FILES))


def _assemble(path: Path, *, epoch: int = 3, step: int = 7, fetched: Path | None = None) -> SnapshotInfo:
    parts: dict[bytes, Path] = {}
    for name, raw in PARTS.items():
        part = parts[blob_id_of(raw)] = (fetched or path.parent) / f"fetched-{name}"
        part.write_bytes(raw)
    return assemble_snapshot(
        path, manifest=_manifest(), parts=parts, epoch=epoch, step=step,
        data_index=70, chain=b"\x01" * 32, digest=b"\x02" * 32,
    )  # fmt: skip


def test_a_snapshot_made_of_fetched_blobs_says_what_it_is(tmp_path: Path) -> None:
    made = _assemble(tmp_path / "s")
    read = read_snapshot_info(tmp_path / "s")
    assert read == made
    assert (read.epoch, read.step, read.data_index, read.chain, read.digest) == (3, 7, 70, b"\x01" * 32, b"\x02" * 32)
    assert read.weight_root == blake3_hash(_manifest()) == blake3_hash(read.manifest)
    assert not read.has_momentum
    assert read_model_files(tmp_path / "s" / "model") == MODEL_FILES


def test_the_blobs_of_a_snapshot_are_its_tensors_and_the_models_files(tmp_path: Path) -> None:
    blobs = _assemble(tmp_path / "s").blobs
    assert [blob.name for blob in blobs] == ["a", "b", "config.json", "tokenizer.json"]
    for blob in blobs:
        raw = blob.path.read_bytes()
        assert (raw, blob.size_bytes) == (PARTS[blob.name], len(raw))
        assert blob.blob_id == blob_id_of(raw)


def test_a_wrong_blob_is_not_assembled(tmp_path: Path) -> None:
    parts = {blob_id_of(raw): tmp_path / name for name, raw in PARTS.items()}
    for part in parts.values():
        part.write_bytes(bytes(24))
    about: dict[str, Any] = {"epoch": 0, "step": 1, "data_index": 0, "chain": bytes(32), "digest": bytes(32)}
    with pytest.raises(TrainerError, match="is not a of the manifest"):
        assemble_snapshot(tmp_path / "s", manifest=_manifest(), parts=parts, **about)
    for name, raw in PARTS.items():
        (tmp_path / name).write_bytes(raw)
    (tmp_path / "tokenizer.json").write_bytes(b"{}")
    with pytest.raises(TrainerError, match=r"is not tokenizer\.json of the manifest"):
        assemble_snapshot(tmp_path / "s", manifest=_manifest(), parts=parts, **about)
    del parts[blob_id_of(PARTS["b"])]
    with pytest.raises(TrainerError, match="no file for b of the manifest"):
        assemble_snapshot(tmp_path / "s", manifest=_manifest(), parts=parts, **about)
    with pytest.raises(TrainerError, match=r"config\.json of the model is missing"):
        assemble_snapshot(tmp_path / "s", manifest=encode_manifest([], []), parts=parts, **about)
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda p: (p / INFO_NAME).unlink(), "No such file"),
        (lambda p: (p / INFO_NAME).write_text('{"vers'), "damaged"),
        (lambda p: (p / INFO_NAME).write_text('{"version": 1}'), "version 1"),
        (lambda p: (p / INFO_NAME).write_text("[]"), "version None"),
        (lambda p: (p / "manifest.bin").write_bytes(b"psyche/model/2"), "damaged"),
        (lambda p: (p / "manifest.bin").unlink(), "No such file"),
        (lambda p: get_tensor_path(p, 1).write_bytes(bytes(19)), "00001.bin of b is missing or cut"),
        (lambda p: get_tensor_path(p, 0).unlink(), "00000.bin of a is missing or cut"),
        (lambda p: (p / "model/config.json").write_bytes(b"{ }"), "config.json is missing or cut"),
        (lambda p: (p / "model/tokenizer.json").unlink(), "tokenizer.json is missing or cut"),
    ],
)
def test_a_damaged_snapshot_is_refused_and_not_listed(tmp_path: Path, damage: object, text: str) -> None:
    _assemble(tmp_path / "s")
    damage(tmp_path / "s")
    with pytest.raises(TrainerError, match="snapshot") as caught:
        read_snapshot_info(tmp_path / "s")
    assert text in str(caught.value)
    assert list_snapshots(tmp_path) == []


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("chain", "00", r"matching regex .*\{64\}.*chain"),
        ("digest", 5, r"Expected `str`.*digest"),
        ("weight_root", "zz" * 32, r"matching regex .*weight_root"),
        ("weight_root", "00" * 32, "does not match the weight root"),
        ("step", -1, r"`int` >= 0 .*step"),
        ("epoch", True, r"Expected `int`.*epoch"),
        ("plan", 3, r"Expected `str`.*plan"),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, key: str, value: object, text: str) -> None:
    _assemble(tmp_path / "s")
    fields = json.loads((tmp_path / "s" / INFO_NAME).read_text())
    (tmp_path / "s" / INFO_NAME).write_text(json.dumps({**fields, key: value}))
    with pytest.raises(TrainerError, match=text):
        read_snapshot_info(tmp_path / "s")


def test_snapshots_are_listed_newest_first(tmp_path: Path) -> None:
    _assemble(tmp_path / "old", epoch=2, step=90)
    _assemble(tmp_path / "new", epoch=3, step=10)
    assert [info.path.name for info in list_snapshots(tmp_path)] == ["new", "old"]
    assert list_snapshots(tmp_path / "absent") == []


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    _assemble(tmp_path / "s")
    with pytest.raises(FileNotFoundError), write_folder(tmp_path / "s") as folder:
        (folder / "absent" / "half").write_bytes(b"")
    assert read_snapshot_info(tmp_path / "s").step == 7
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_what_a_killed_process_left_is_repaired(tmp_path: Path) -> None:
    _assemble(tmp_path / "s")
    shutil.copytree(tmp_path / "s", tmp_path / ".t.tmp-12-ab")  # killed while writing
    shutil.copytree(tmp_path / "s", tmp_path / ".s.old-12-ab")  # killed before the replaced one was removed
    (tmp_path / "s").rename(tmp_path / ".u.old-12-ab")  # killed between the two renames
    (tmp_path / ".other").mkdir()
    clean_leftovers(tmp_path)
    clean_leftovers(tmp_path / "absent")
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_dir()) == [".other", "s", "u"]
    assert read_snapshot_info(tmp_path / "u").weight_root == blake3_hash(_manifest())


def test_code_weights_and_unknown_files_are_no_model_files(tmp_path: Path) -> None:
    for name in ("config.json", "code.py", "w.safetensors", "w.index.json", "tokenizer.model", "notes.txt"):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "vocab.json").mkdir()
    assert sorted(read_model_files(tmp_path)) == ["config.json", "tokenizer.model"]
    assert read_file_entries(tmp_path) == get_file_entries(read_model_files(tmp_path))


@pytest.mark.parametrize("read", [read_model_files, read_file_entries])
def test_model_files_that_are_too_large_in_all_are_not_read(tmp_path: Path, read: Callable[[Path], object]) -> None:
    """B25."""
    for name, size in (("config.json", 2), ("tokenizer.json", MAX_MODEL_FILES_BYTES - 1)):
        with (tmp_path / name).open("wb") as file:
            file.truncate(size)
    with pytest.raises(TrainerError, match=r"config\.json, tokenizer\.json have 67108865 bytes in all, at most"):
        read(tmp_path)


def test_changed_model_files_of_a_snapshot_are_named(tmp_path: Path) -> None:
    """B25."""
    info = _assemble(tmp_path / "s")
    assert read_snapshot_files(info) == MODEL_FILES
    (tmp_path / "s/model/config.json").write_bytes(b"[]")
    (tmp_path / "s/model/vocab.json").write_bytes(b"[]")
    with pytest.raises(
        TrainerError, match=r"config\.json \(different content\), vocab\.json \(not part of the run's model\)"
    ):
        read_snapshot_files(info)


def test_no_power_cut_costs_a_finished_snapshot_or_leaves_one_that_is_not_whole(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    with watch_disk(root) as watch:
        for number, name in enumerate(("b", "a", "a")):  # the last one takes the place of the newest
            _assemble(root / "run/snapshots" / name, epoch=number, fetched=tmp_path)
            watch.promise((number, 7))
    for number, loss in enumerate(watch.losses):
        folder = tmp_path / str(number)
        folder.mkdir()
        loss.restore(folder)
        clean_leftovers(folder / "run/snapshots")
        found = list_snapshots(folder / "run/snapshots")
        assert not loss.promised or max((info.epoch, info.step) for info in found) >= loss.promised, loss.moment
        for info in found:
            for index, entry in enumerate(info.entries):
                assert blob_id_of(get_tensor_path(info.path, index).read_bytes()) == entry.blob_id, loss.moment
            assert read_model_files(info.path / "model") == MODEL_FILES, loss.moment
