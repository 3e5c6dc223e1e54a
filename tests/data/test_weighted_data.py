"""Several data sets in one: the order of their rows, whichever the shares, and what a mix must be."""

import hashlib
import json
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kits.storage.servers import OPTIONS, serve_folder

from psyche.core.state.state import DataLocation, DataLocationKind
from psyche.data.provider import DataProvider, open_provider
from psyche.data.weighted import MAX_MIX_BYTES, MixOrder
from psyche.errors import DataError
from psyche.testing.builders import build_identity

LENGTH = 3
SEEDED = {"Seeded": list(range(32))}


def draw(weights: list[int], first: int, count: int) -> list[tuple[int, int]]:
    """The source of each index, and the number of samples that it has given before."""
    drawn = [(-1, -1)] * count
    for source, (places, counts) in enumerate(MixOrder(weights).find(np.arange(first, first + count))):
        for place, before in zip(places.tolist(), counts.tolist(), strict=True):
            drawn[place] = source, before
    return drawn


def test_the_order_of_sources_is_pinned() -> None:
    assert draw([1, 1], 0, 4) == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert [source for source, _ in draw([5, 3, 1, 7], 0, 16)] == [0, 2, 0, 3, 1, 3, 0, 3, 0, 3, 1, 3, 0, 3, 1, 3]
    weights = [5 * 10**11, 333 * 10**9, 1]
    assert draw(weights, 10**18 + 2**16, 3) == [
        (1, 399759903961130928),
        (0, 600240096037734128),
        (1, 399759903961130929),
    ]


@pytest.mark.parametrize("weights", [[1], [7, 7, 7], [10, 1, 3, 90, 2], [1, 65_535], [10**24, 1]])
def test_any_index_alone_goes_on_where_the_one_before_it_ended_and_no_share_is_far_off(weights: list[int]) -> None:
    given: Counter[int] = Counter()
    for index, (source, before) in enumerate(draw(weights, 0, 2_000)):
        assert before == given[source], f"{weights} {index}"
        given[source] += 1
        for number, weight in enumerate(weights):
            assert abs(given[number] - (index + 1) * weight / sum(weights)) <= 3, f"{weights} {index}"
    assert [draw(weights, index, 1)[0] for index in range(500, 520)] == draw(weights, 500, 20)
    if sum(weights) <= 2_000:
        assert sorted(draw(weights, 0, sum(weights))) == [(i, n) for i, w in enumerate(weights) for n in range(w)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mix")
    for value in (1, 2, 3, 4):
        (folder / f"set-{value}.bin").write_bytes(np.full(8, value, "<u2").tobytes())
    return folder


@pytest.fixture(scope="module")
def address(folder: Path) -> Generator[str]:
    with serve_folder(folder) as address:
        yield address


def describe(address: str, first: int, count: int = 2, **changes: object) -> dict[str, Any]:
    files = {"url_template": f"{address}/set-{{}}.bin", "start_index": first, "n_left_pad_zeros": 0, "num_files": count}
    whole = {"location": {"NumberedFiles": files}, "token_size_in_bytes": "TwoBytes", "shuffle": "DontShuffle"}
    return whole | changes


def open_mix(address: str, folder: Path, mix: object, *, pin: str = "") -> DataProvider:
    raw = mix if isinstance(mix, bytes) else json.dumps(mix).encode()
    name = f"{hashlib.sha256(raw).hexdigest()[:16]}.json"
    (folder / name).write_bytes(raw)
    return open_provider(
        DataLocation(DataLocationKind.WEIGHTED_HTTP, f"{address}/{name}{pin}"), sequence_length=LENGTH, vocab_size=9,
        folder=Path(), identity=build_identity("own"), storage=OPTIONS,
    )  # fmt: skip


async def read(provider: DataProvider, start: int, end: int) -> list[int]:
    rows = np.frombuffer(await provider.get(start, end), "<u4").reshape(-1, LENGTH)
    await provider.aclose()
    assert (rows == rows[:, :1]).all()
    return rows[:, 0].tolist()


async def test_two_sets_of_equal_weight_take_turns_and_start_over(address: str, folder: Path) -> None:
    mix = {"shuffle": "DontShuffle", "providers": [[describe(address, 1), 0.5], [describe(address, 3), 0.5]]}
    assert await read(open_mix(address, folder, mix), 0, 8) == [1, 3, 1, 3, 2, 4, 2, 4, 1]


async def test_a_small_set_comes_again_as_often_as_its_weight_says(address: str, folder: Path) -> None:
    mix = {"shuffle": "DontShuffle", "providers": [[describe(address, 1), 3], [describe(address, 4, 1), 1.5]]}
    assert await read(open_mix(address, folder, mix), 0, 8) == [1, 1, 4, 2, 2, 4, 1, 1, 4]


async def test_without_weights_each_row_comes_once_in_a_pass_shuffled_or_not(address: str, folder: Path) -> None:
    sources = [describe(address, 1, 3, shuffle=SEEDED), describe(address, 4, 1)]
    plain = await read(open_mix(address, folder, {"shuffle": "DontShuffle", "providers": sources}), 0, 7)
    assert sorted(plain) == [1, 1, 2, 2, 3, 3, 4, 4]
    mixed = await read(open_mix(address, folder, {"shuffle": SEEDED, "providers": sources}), 0, 15)
    assert sorted(mixed[:8]) == sorted(mixed[8:]) == sorted(plain)
    assert len({tuple(plain), tuple(mixed[:8]), tuple(mixed[8:])}) == 3
    assert await read(open_mix(address, folder, {"shuffle": SEEDED, "providers": sources}), 5, 9) == mixed[5:10]


async def test_a_pinned_mix_is_read_only_with_its_own_hash(address: str, folder: Path) -> None:
    mix = {"shuffle": "DontShuffle", "providers": [describe(address, 1)]}
    right = hashlib.sha256(json.dumps(mix).encode()).hexdigest()
    assert await read(open_mix(address, folder, mix, pin=f"#sha256={right}"), 0, 1) == [1, 1]
    with pytest.raises(DataError, match=f"another mix than that on record: its SHA-256 is {right}"):
        await open_mix(address, folder, mix, pin="#sha256=" + "0" * 64).get(0, 0)
    with pytest.raises(DataError, match="must be sha256= and 64 hex digits"):
        open_mix(address, folder, mix, pin="#sha256=12")


A = describe("https://example.org", 1)


@pytest.mark.parametrize(
    ("mix", "text"),
    [
        (b" " * (MAX_MIX_BYTES + 1), "a mix at most"),
        (b"[" * 100_000, "is no mix"),
        ({"shuffle": "DontShuffle", "providers": []}, r"providers"),
        ({"shuffle": {"Seeded": [1]}, "providers": [A]}, r"shuffle.Seeded"),
        ({"shuffle": "DontShuffle", "providers": [[A, 1], A]}, "either each provider has a weight"),
        ({"shuffle": "DontShuffle", "providers": [[A, 1], [A, 0]]}, r"providers\[1\]: the weight must be from"),
        ({"shuffle": "DontShuffle", "providers": [A | {"token_size_in_bytes": "One"}]}, r"token_size_in_bytes"),
        (
            {"shuffle": "DontShuffle", "providers": [A | {"location": {}}]},
            r"providers\[0\]: a location must be exactly",
        ),
        (
            {"shuffle": "DontShuffle", "providers": [A | {"location": {"SingleUrl": "ftp://a/b"}}]},
            r"providers\[0\]: data location: .*https",
        ),
    ],
    ids=["too large", "too deep", "no source", "seed", "some weights", "weight 0", "token size", "location", "scheme"],
)
async def test_what_is_no_mix_is_refused_with_its_place(address: str, folder: Path, mix: object, text: str) -> None:
    provider = open_mix(address, folder, mix)
    with pytest.raises(DataError, match=text):
        await provider.get(0, 0)
    await provider.aclose()
