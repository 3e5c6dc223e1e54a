"""Documents from the Hub's conversion at one commit and from folders; files that are of another form."""

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from kits.storage.hub import Blob, open_hub_double
from kits.storage.servers import OPTIONS
from kits.storage.tasks import list_splits, make_row, to_parquet, write_data

from psyche.errors import DataError, StorageRefused
from psyche.evals import sources
from psyche.evals.documents import Documents
from psyche.evals.sources import CONVERTED, load_documents
from psyche.evals.tasks import TASKS
from psyche.storage.port import StorageOptions

PIQA = "ybisk/piqa/plain_text/validation/0000.parquet"


async def load(
    name: str, folder: Path | None, options: StorageOptions = OPTIONS, *, shots: int = 2, limit: int | None = None
) -> Documents:
    return await load_documents(TASKS[name], folder, options, shots=shots, seed=1, limit=limit)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"), 3)


async def test_every_task_reads_its_own_splits_of_the_published_files(data: Path) -> None:
    for name, task in TASKS.items():
        found = await load(name, data)
        assert len(found.documents) == 3 * max(1, len(task.subsets)), name
        assert all("\n\n" in document.context for document in found.documents), "with examples"
        assert len((await load(name, data, limit=2)).documents) == 2


async def test_the_hub_is_read_at_one_commit_and_kept(data: Path, tmp_path: Path) -> None:
    async with open_hub_double() as hub:
        options = replace(OPTIONS, hub_endpoint=hub.address, cache_dir=tmp_path, cache_gb=1.0)
        repo = hub.add("ybisk/piqa", {}, kind="dataset")
        piqa = {f"{path}/0000.parquet".removeprefix("ybisk/piqa/") for name, path in list_splits() if name == "piqa"}
        raw = {name: (data / "ybisk" / "piqa" / name).read_bytes() for name in sorted(piqa)}
        commit = repo.commit({name: Blob(one, is_lfs=True) for name, one in raw.items()}, CONVERTED)
        found = await load("piqa", None, options)
        assert found.source == f"hf://datasets/ybisk/piqa@{commit}"
        assert found.compute_hash() == (await load("piqa", data)).compute_hash()
        served_bytes = hub.served_bytes
        assert await load("piqa", None, options) == found
        assert hub.served_bytes - served_bytes < min(map(len, raw.values())), "only the listing was read again"
        with pytest.raises(StorageRefused, match=r"hellaswag.*; without the Hub, copy its files .*: --task-data"):
            await load("hellaswag", None, options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"goal": None}, r"piqa/plain_text/validation/0000.parquet, row 1: Expected `str`, got `null` - at `\$.goal`"),
        ({"label": -1}, r"0000.parquet, row 1: the right answer is number -1 of 2 choices"),
    ],
)
async def test_a_row_that_does_not_fit_is_named(change: dict[str, object], message: str, tmp_path: Path) -> None:
    rows = [make_row("piqa", number, Random(number)) for number in range(2)]
    path = write_data(tmp_path, 1) / PIQA
    path.write_bytes(to_parquet([rows[0], rows[1] | change]))
    with pytest.raises(DataError, match=message):
        await load("piqa", tmp_path)


async def test_an_answer_that_is_no_choice_is_named(tmp_path: Path) -> None:
    row = make_row("arc", 0, Random(0)) | {"answerKey": "E"}
    path = write_data(tmp_path, 1) / "allenai/ai2_arc/ARC-Easy/test/0000.parquet"
    path.write_bytes(to_parquet([row]))
    with pytest.raises(DataError, match="row 0: the right answer is none of the choices: 'E'"):
        await load("arc_easy", tmp_path)


async def test_files_of_another_form_are_named_with_what_they_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_data(tmp_path, 1) / PIQA
    path.write_bytes(to_parquet([{"question": "x", "goal": "y"}]))
    with pytest.raises(DataError, match=r"has no column sol1 or sol2 or label \(there are: question, goal\)"):
        await load("piqa", tmp_path)
    path.write_bytes(b"PAR1 no more")
    with pytest.raises(DataError, match=r"0000.parquet: cannot be read as Parquet"):
        await load("piqa", tmp_path)
    path.unlink()
    missing = r"piqa: no file with a name that begins with 'validation' .*; a task reads the folder SUBSET/SPLIT of its"
    with pytest.raises(DataError, match=missing):
        await load("piqa", tmp_path)
    monkeypatch.setattr(sources, "MAX_SPLIT_BYTES", 100)
    with pytest.raises(DataError, match=r"with it the split has more than 0 MiB of text"):
        await load("boolq", tmp_path)
    with pytest.raises(DataError, match=r"reads the Parquet files of ybisk/piqa there, each in a folder"):
        await load("piqa", tmp_path / "elsewhere")
