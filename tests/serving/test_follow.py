"""Weights that change while requests stream: none is lost, and each answer is that of the weights it names."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import openai
import pytest
import safetensors.numpy
from serving.letters import make_letters_model
from serving.serving_kit import Server, llama, open_server, write_plainly

from psyche.core.encoding.manifest import TensorEntry, encode_manifest
from psyche.errors import ConfigError
from psyche.modeling.snapshot import assemble_snapshot, get_file_entries, read_model_files
from psyche.serving.following import Follower
from psyche.telemetry import types
from psyche.telemetry.events import EventLog
from psyche.wire.crypto import blake3_hash, blob_id_of, compute_state_digest

CHAIN = b"c" * 32
TOKENS = 24
Sources = dict[str, Path]  # folders by their weights' digest


class Client:
    """The data folder of a client: its snapshots, and the log that says which of them are certified."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._events = EventLog(folder / "events.jsonl", node="client-1")
        self._events.emit(types.ClientStarted(identity=b"k" * 32, run_id="my-run", pid=1))

    def write_snapshot(self, model: Path, step: int) -> bytes:
        """Write a model's weights as a client does; return their digest."""
        parts: dict[bytes, Path] = {}
        entries: list[TensorEntry] = []
        for name, values in sorted(safetensors.numpy.load_file(model / "model.safetensors").items()):
            raw = values.astype("<f4").tobytes()
            entries.append(TensorEntry(name, values.shape, blob_id_of(raw)))
            parts[blob_id_of(raw)] = self._keep(f"{step}-{len(parts)}", raw)
        small = read_model_files(model)
        parts |= {blob_id_of(raw): self._keep(f"{step}-{name}", raw) for name, raw in small.items()}
        manifest = encode_manifest(tuple(entries), get_file_entries(small))
        digest = compute_state_digest(CHAIN, blake3_hash(manifest))
        assemble_snapshot(
            self.folder / "resume" / f"epoch-00000-step-{step:08d}", manifest=manifest, parts=parts, epoch=0, step=step,
            data_index=0, chain=CHAIN, digest=digest,
        )  # fmt: skip
        return digest

    def _keep(self, name: str, raw: bytes) -> Path:
        path = self.folder / f"part-{name}"
        path.write_bytes(raw)
        return path

    def agree(self, digest: bytes, *, agreed: bool = True) -> None:
        self._events.emit(types.Digest(height=1, digest=digest, agreed=agreed))


@pytest.fixture
def client(tmp_path: Path) -> Client:
    (tmp_path / "client-1").mkdir()
    return Client(tmp_path / "client-1")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("models")
    return [make_letters_model(folder / f"m{seed}", seed) for seed in range(4)]


def test_weights_are_given_once_they_are_agreed_and_only_once(
    client: Client, models: list[Path], tmp_path: Path
) -> None:
    first = client.write_snapshot(models[0], 10)
    follower = Follower(client.folder, None, tmp_path / "copies")
    assert follower.find() is None, "nobody has said that these are the run's"
    client.agree(first, agreed=False)
    assert follower.find() is None
    client.agree(first)
    found = follower.find()
    assert found is not None
    assert found.id == f"my-run/step10/{first.hex()[:16]}"
    stored, given = (safetensors.numpy.load_file(one / "model.safetensors") for one in (models[0], found.folder))
    assert all(np.array_equal(given[name], values) for name, values in stored.items())
    assert follower.find() is None
    second, _wrong = client.write_snapshot(models[1], 20), client.write_snapshot(models[2], 30)
    client.agree(second)
    assert getattr(follower.find(), "step", None) == 20


def test_a_log_that_is_elsewhere_is_found_or_asked_for(client: Client, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such folder; name the data folder of a client"):
        Follower(tmp_path / "nowhere", None, tmp_path)
    elsewhere = tmp_path / "events" / "client-1"
    elsewhere.mkdir(parents=True)
    moved = (client.folder / "events.jsonl").rename(elsewhere / "events.jsonl")
    Follower(client.folder, None, tmp_path)  # as a testnet's
    other = moved.rename(tmp_path / "log")
    with pytest.raises(ConfigError, match=r"no event log at .*; name it with --events"):
        Follower(client.folder, None, tmp_path)
    Follower(client.folder, other, tmp_path)


@pytest.fixture
def publish(client: Client, models: list[Path]) -> Callable[[int], tuple[str, Path]]:
    def certify(number: int) -> tuple[str, Path]:
        digest = client.write_snapshot(models[number], 10 * (number + 1))
        client.agree(digest)
        return digest.hex(), models[number]

    return certify


@pytest.fixture(params=[()])
def server(request: pytest.FixtureRequest, client: Client) -> Iterator[Server]:
    with open_server("--follow", client.folder, *request.param) as server:
        yield server


@pytest.mark.e2e
@pytest.mark.whole
@pytest.mark.parametrize("server", [pytest.param(("--batch", "--temperature", "0"), id="batch"), llama], indirect=True)
def test_200_streams_over_three_changes_of_weights_are_whole_and_each_of_the_weights_it_names(
    server: Server, publish: Callable[[int], tuple[str, Path]]
) -> None:
    sources: Sources = dict([publish(0)])
    server.wait_for("answers now")
    caller = openai.OpenAI(base_url=server.url, api_key="none", max_retries=0)
    answers: list[tuple[str, str, str]] = []  # prompt, digest, text
    failures: list[BaseException] = []
    is_over = threading.Event()

    def stream(number: int) -> None:
        try:
            while not is_over.is_set():
                prompt = "abc"[number]
                asked: Any = {"model": "my-run", "prompt": prompt, "max_tokens": TOKENS, "temperature": 0}
                parts = list(caller.completions.create(**asked, stream=True))
                (digest,) = {part.digest for part in parts}  # pyright: ignore[reportAttributeAccessIssue]
                assert parts[-1].choices[0].finish_reason
                answers.append((prompt, digest, "".join(part.choices[0].text for part in parts)))
        except BaseException as error:  # noqa: BLE001  # shown below, in the test's own thread
            failures.append(error)

    def wait_for_more() -> None:
        before = len(answers)
        while len(answers) < before + 50 and not failures:
            is_over.wait(0.05)

    threads = [threading.Thread(target=stream, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    try:
        for number in range(1, 4):
            wait_for_more()
            sources |= [publish(number)]
            server.wait_for("answers now")
        wait_for_more()
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    assert not failures
    assert len(answers) >= 200
    print(f"{len(answers)} answers: {sorted(Counter(digest[:8] for _, digest, _ in answers).values())} a digest")
    expected = {(prompt, digest): write_plainly(sources[digest], prompt, TOKENS) for prompt, digest, _ in set(answers)}
    assert [text for *key, text in answers] == [expected[prompt, digest] for prompt, digest, _ in answers]
    assert {digest for _, digest, _ in answers} == sources.keys(), "each of them has answered"


@pytest.mark.e2e
@pytest.mark.whole
@pytest.mark.parametrize("server", [("--swap", "stop")], indirect=True)
def test_where_memory_holds_one_engine_requests_are_refused_while_weights_change(
    server: Server, publish: Callable[[int], tuple[str, Path]], client: Client
) -> None:
    publish(0)
    server.wait_for("answers now")
    second, _ = publish(1)
    server.wait_for("the engine is starting")
    with httpx2.Client(trust_env=False, timeout=300) as caller:
        seen: list[tuple[int, str]] = []
        while not seen or seen[-1][0] == 503:
            answer = caller.get(server.url.replace("/v1", "/health"))
            seen.append((answer.status_code, answer.headers.get("retry-after", "")))
        assert (503, "5") in seen, "at the change"
        assert answer.json()["model"] == f"my-run/step20/{second[:16]}"
    server.process.terminate()
    assert server.process.wait(60) == 0
    assert [path.name for path in client.folder.glob("psyche-*")] == [], "the copies have gone"
