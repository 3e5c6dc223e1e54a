"""What the gate refuses, in words, before an engine or a log has seen any of it."""

import json
import logging
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio
from serving.letters import TEMPLATE, make_letters_model
from tokenizers import Tokenizer

from psyche.errors import ConfigError
from psyche.serving import gate as gates
from psyche.serving.engine import Engine
from psyche.serving.gate import Gate
from psyche.serving.model import read_model
from psyche.serving.requests import Cutter
from psyche.serving.settings import ServeSettings
from psyche.wire.web import bind, serve_app

SECRET = "what nobody else may read"
SAYS = [{"role": "user", "content": SECRET}]
COMPLETE, CHAT = "/v1/completions", "/v1/chat/completions"
REFUSED: list[tuple[str, Any, int, str]] = [
    ("/load_model", {"model": "/etc"}, 404, "there is no such route; those are /health, /v1/models, /v1/comp"),
    ("/reset", {}, 404, "there is no such route"),
    (COMPLETE, b"{", 400, "the body: Input data was truncated"),
    (COMPLETE, [], 400, "the body: Expected `object`, got `array`"),
    (COMPLETE, b"[" * 5_000, 400, "the body: "),
    (COMPLETE, b" " * (1 << 20) + b"{}", 413, "the body has more than 1,048,576 bytes"),
    (COMPLETE, {}, 400, "missing required field `prompt`"),
    (COMPLETE, {"prompt": SECRET, "n": 2, "logprobs": 0, "echo": True, "max_tokens": 1}, 400, "echo, n: not support"),
    (COMPLETE, {"prompt": SECRET, "generation_config": "{}"}, 400, "generation_config: not supported here"),
    (COMPLETE, {"prompt": [SECRET]}, 400, "prompt: Expected `str`, got `array`"),
    (COMPLETE, {"prompt": SECRET, "max_tokens": 0}, 400, "max_tokens: Expected `int` >= 1"),
    (COMPLETE, {"prompt": SECRET, "max_tokens": True}, 400, "max_tokens: Expected `int | null`, got `bool`"),
    (COMPLETE, {"prompt": SECRET, "temperature": 2.5}, 400, "temperature: Expected `float` <= 2.0"),
    (COMPLETE, {"prompt": SECRET, "top_p": 0}, 400, "top_p: Expected `float` > 0.0"),
    (COMPLETE, {"prompt": SECRET, "seed": -1}, 400, "seed: Expected `int` >= 0"),
    (COMPLETE, {"prompt": SECRET, "stop": list("abcde")}, 400, "stop: Expected `array` of length <= 4"),
    (COMPLETE, {"prompt": SECRET, "max_tokens": 104}, 400, "max_tokens: 104, but 25 of the model's 128 positions are"),
    (COMPLETE, {"prompt": ""}, 400, "prompt: has no token; write something"),
    (COMPLETE, {"prompt": "a" * 128}, 400, "prompt: 128 tokens, and the model has 128 positions"),
    (COMPLETE, {"prompt": SECRET, "model": "gpt-4"}, 404, "model: this server has model/"),
    (CHAT, {"messages": []}, 400, "messages: Expected `array` of length >= 1"),
    (CHAT, {"messages": [{"role": "tool", "content": SECRET}]}, 400, "messages[0].role: Invalid enum value 'tool'"),
    (CHAT, {"messages": SAYS, "tools": [{"type": "function"}]}, 400, "tools: not supported here"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "Invalid enum value 'image_url'"),
    (CHAT, {"messages": SAYS, "max_completion_tokens": 500}, 400, "max_completion_tokens: 500, but "),
    (CHAT, {"messages": [{"role": "user", "content": "?"}]}, 400, "model's chat template refuses them: no questions"),
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_letters_model(tmp_path_factory.mktemp("gate") / "model", 0)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(4)  # as some published models have it
    tokenizer.save(str(folder / "tokenizer.json"))
    refusing = "{% if '?' in messages[0].content %}{{ raise_exception('no questions') }}{% endif %}"
    (folder / "chat_template.jinja").write_text(refusing + TEMPLATE)
    return folder


@pytest.fixture
def settings() -> ServeSettings:
    return ServeSettings()


@pytest.fixture
async def open_gate(folder: Path, settings: ServeSettings, tmp_path: Path) -> AsyncGenerator[tuple[Gate, Any]]:
    """A gate whose engine is not started: what it refuses never gets there."""
    gate, listening = Gate(settings), bind("127.0.0.1", 0)
    gate.engine = Engine(read_model(folder), settings, tmp_path)
    address = f"http://127.0.0.1:{listening.getsockname()[1]}"
    async with serve_app(gate.app, listening), httpx2.AsyncClient(base_url=address, trust_env=False) as client:
        yield gate, client


async def post(client: Any, path: str, body: object, **headers: str) -> Any:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await client.post(path, content=raw, headers={"content-type": "application/json", **headers})


async def test_a_bad_request_is_refused_with_its_field_and_leaves_no_trace(
    open_gate: tuple[Gate, Any], caplog: pytest.LogCaptureFixture
) -> None:
    _, client = open_gate
    caplog.set_level(logging.DEBUG, "psyche")
    for path, body, status, words in REFUSED:
        answer = await post(client, path, body)
        said = answer.json()["error"]["message"]
        assert (answer.status_code, words in said) == (status, True), f"{path} {body!r:.80}: {said}"
        assert SECRET not in said + caplog.text


async def test_only_calls_that_no_strangers_page_can_make_are_answered(open_gate: tuple[Gate, Any]) -> None:
    _, client = open_gate
    assert (await post(client, COMPLETE, {"prompt": ""}, host="evil.example")).status_code == 421
    assert (await post(client, COMPLETE, {"prompt": ""}, origin="http://evil.example")).status_code == 403
    assert (await client.post(COMPLETE, content=b'{"prompt": ""}')).status_code == 415
    assert (await client.get(COMPLETE)).status_code == 405
    assert (await client.get("/health")).json()["status"] == "ok"


async def test_without_an_engine_callers_are_told_when_to_come_again(open_gate: tuple[Gate, Any]) -> None:
    gate, client = open_gate
    gate.engine, gate.problem = None, "the weights are being changed"
    for answer in (await client.get("/health"), await post(client, COMPLETE, {"prompt": "a"})):
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        assert answer.json()["error"]["message"] == "the weights are being changed; try again later"


@pytest.mark.parametrize("settings", [ServeSettings(queue=2, deadline_s=2)])
async def test_a_full_queue_refuses_and_a_wait_has_a_deadline(open_gate: tuple[Gate, Any]) -> None:
    gate, client = open_gate
    assert gate.engine is not None
    found: list[int] = []

    async def ask() -> None:
        found.append((await post(client, COMPLETE, {"prompt": "a"})).status_code)

    await gate.engine._turns.acquire_on_behalf_of(gate)  # an answer that takes long
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(ask)
    assert sorted(found) == [429, 429, 504, 504, 504]


@pytest.mark.parametrize("settings", [ServeSettings(batch=True, temperature=0.5)])
async def test_a_batch_that_is_sampled_alike_refuses_other_wishes(open_gate: tuple[Gate, Any]) -> None:
    _, client = open_gate
    answer = await post(client, COMPLETE, {"prompt": "a", "temperature": 0, "seed": 3, "top_p": 1})
    assert answer.json()["error"]["message"].startswith(
        "temperature, seed: this server writes answers together, all at temperature 0.5; leave it out"
    )


async def test_a_body_that_does_not_come_is_not_waited_for(
    open_gate: tuple[Gate, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, client = open_gate
    monkeypatch.setattr(gates, "BODY_S", 0.2)
    stream = await trio.open_tcp_stream("127.0.0.1", client.base_url.port)
    head = ["POST /v1/completions HTTP/1.1", "host: localhost", "content-type: application/json", "content-length: 9"]
    await stream.send_all("\r\n".join([*head, "", ""]).encode())
    with trio.fail_after(120):
        assert b" 408 " in await stream.receive_some(4096)


async def test_keys_of_a_file_are_asked_for(folder: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("\n")
    with pytest.raises(ConfigError, match="has no key; write one on each line"):
        Gate(ServeSettings(api_key_file=keys))
    keys.write_text("first\nsecond\n")
    keys.chmod(0o600)
    gate, listening = Gate(ServeSettings(api_key_file=keys)), bind("127.0.0.1", 0)
    gate.engine = Engine(read_model(folder), ServeSettings(), tmp_path)
    address = f"http://127.0.0.1:{listening.getsockname()[1]}/v1/models"
    async with serve_app(gate.app, listening), httpx2.AsyncClient(trust_env=False) as client:
        for said, status in (("", 401), ("Bearer third", 401), ("Bearer firs", 401), ("Bearer second", 200)):
            assert (await client.get(address, headers={"authorization": said})).status_code == status


def test_the_gates_process_loads_no_torch(folder: Path) -> None:
    program = f"""
import sys
from pathlib import Path
from psyche.serving.model import read_model
from psyche.serving.requests import Chat, read_request
import psyche.serving.serve
asked = read_request(b'{{"messages": [{{"role": "user", "content": "hi"}}]}}', Chat)
ids, most = read_model(Path({str(folder)!r})).measure(asked)
print(len(ids), most, "torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "7 121 False\n", "u:hi;a: has seven letters"


@pytest.mark.parametrize(
    ("parts", "said", "ends"),
    [(["ab", "cd"], "abcd", False), (["a", "bS", "TO", "Pcd"], "ab", True), (["aST", "x"], "aSTx", False),
     (["SS", "TOP"], "S", True), (["aEN", "D"], "a", True), (["abST"], "abST", False)],
)  # fmt: skip
def test_a_text_ends_before_the_first_stop_wherever_it_is_cut(parts: list[str], said: str, ends: bool) -> None:
    cutter, text = Cutter(["STOP", "END"]), ""
    for part in parts:
        piece, is_cut = cutter.take(part)
        text += piece
        if is_cut:
            break
    else:
        text, is_cut = text + cutter.finish(), False
    assert (text, is_cut) == (said, ends)
