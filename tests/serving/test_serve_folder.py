"""A model behind the gate, called by the programs that people have."""

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from kits.commands import call, run
from serving.letters import TEMPLATE, make_letters_model
from serving.serving_kit import Server, llama, open_server, write_plainly

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_letters_model(tmp_path_factory.mktemp("served") / "model", 0)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture(scope="module", params=[pytest.param((), id="transformers"), llama])
def server(folder: Path, request: pytest.FixtureRequest) -> Iterator[Server]:
    with open_server(folder, *request.param) as server:
        server.wait_for("answers now")
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url, api_key="none", max_retries=0)


def test_openais_client_gets_the_text_of_plain_transformers_and_the_name_of_the_weights(
    client: openai.OpenAI, folder: Path
) -> None:
    (model,) = client.models.list().data
    digest: str = model.digest  # pyright: ignore[reportAttributeAccessIssue]
    assert model.id == f"model/{digest[:16]}"
    expected = write_plainly(folder, "hello", 20)
    asked: Any = {"model": "model", "prompt": "hello", "max_tokens": 20, "temperature": 0}
    whole = client.completions.with_raw_response.create(**asked)
    assert whole.headers["psyche-digest"] == digest
    assert (whole.parse().choices[0].text, whole.parse().model) == (expected, model.id)
    assert whole.parse().usage.completion_tokens == 20
    parts = list(client.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert "".join(choice.text for part in parts for choice in part.choices) == expected
    assert {part.digest for part in parts} == {digest}
    assert parts[-1].usage.total_tokens == 25
    stopped = client.completions.create(**asked, stop=expected[7:9]).choices[0]
    assert (stopped.text, stopped.finish_reason) == (expected[: expected.index(expected[7:9])], "stop")


@pytest.mark.whole
def test_a_chat_is_put_together_by_the_models_template(client: openai.OpenAI, folder: Path) -> None:
    asked: Any = {"model": "model", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 12, "temperature": 0}
    expected = write_plainly(folder, "hi", 12, is_chat=True)
    assert client.chat.completions.create(**asked).choices[0].message.content == expected
    parts = list(client.chat.completions.create(**asked, stream=True))
    assert "".join(part.choices[0].delta.content or "" for part in parts) == expected
    assert [parts[0].choices[0].delta.role, parts[-1].choices[0].finish_reason] == ["assistant", "length"]


def test_each_request_is_sampled_as_it_asks(client: openai.OpenAI) -> None:
    def write(**asked: Any) -> str:
        return client.completions.create(model="model", prompt="hello", max_tokens=30, **asked).choices[0].text

    first = write(temperature=1.5, seed=1)
    assert first == write(temperature=1.5, seed=1)
    assert len({first, write(temperature=1.5, seed=2), write(temperature=0), write(seed=3)}) == 4
    assert write(temperature=0) == write(temperature=1.5, top_p=1e-6), "of one token there is no choice"


def test_curl_shows_the_stream(server: Server, folder: Path) -> None:
    curl = shutil.which("curl")
    assert curl, "install curl"
    body = json.dumps({"prompt": "def ", "max_tokens": 8, "temperature": 0, "stream": True})
    words = [curl, "-sN", f"{server.url}/completions", "-H", "Content-Type: application/json", "-d", body]
    lines = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    said = [json.loads(line.removeprefix("data: "))["choices"][0]["text"] for line in lines[:-2]]
    assert "".join(said) == write_plainly(folder, "def ", 8)


def test_psyche_chats_with_a_folder_and_with_its_server_alike(server: Server, folder: Path) -> None:
    options = ["--temperature", 0, "--tokens", 10]
    said = "hi\nyo\n" + "x" * 90 + "\nhi\n" + "z" * 130 + "\n"
    here, there = (call("model", "chat", place, *options, typed=said) for place in (folder, server.url))
    assert there.stdout == here.stdout
    assert "questions are forgotten" in there.stderr
    assert "messages: 135 tokens, and the model has 128 positions" in there.stderr
    refused = run("model", "chat", "http://127.0.0.1:1", typed="hi\n", code=1)
    assert "http://127.0.0.1:1: no server of OpenAI's API names a model there" in refused.stderr


def test_a_caller_who_leaves_frees_the_engine_for_the_next(client: openai.OpenAI) -> None:
    for _ in range(3):
        with client.completions.create(model="model", prompt="a", max_tokens=120, stream=True) as parts:
            next(iter(parts))
    assert client.completions.create(model="model", prompt="a", max_tokens=1).choices


def test_what_was_asked_stands_in_no_log(server: Server, client: openai.OpenAI) -> None:
    client.completions.create(model="model", prompt="secretsecret", max_tokens=1)
    for log in find_logs(server):
        assert "secretsecret" not in log.read_text(), log
    assert "secretsecret" not in "".join(server.lines)


def test_the_engine_ends_with_its_killed_parent(folder: Path) -> None:
    with open_server(folder) as server:
        server.wait_for("the engine is starting")
        while not (engines := find_children(server.process.pid)):
            time.sleep(0.05)
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
    while any(Path(f"/proc/{pid}").exists() for pid in engines):
        time.sleep(0.05)


@pytest.mark.whole
def test_an_engine_that_fails_is_told_with_its_own_words(folder: Path, tmp_path: Path) -> None:
    broken = shutil.copytree(folder, tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"nothing")
    with open_server(broken) as server:
        assert server.process.wait(300) == 1
        assert server.process.stderr is not None
        said = server.process.stderr.read()
    assert "error: the engine of broken/" in said
    assert "has ended, exit code 1" in said
    assert "SafetensorError" in said


def find_children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def find_logs(server: Server) -> list[Path]:
    """The files to which the engine's output goes."""
    (engine,) = find_children(server.process.pid)
    found = Path(f"/proc/{engine}/fd/1").readlink()
    assert found.stat().st_size
    return [found]
