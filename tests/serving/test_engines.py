"""Engines that are programs of others: what they are started with and sent, and the file that llama-server reads."""

import dataclasses
import sys
from pathlib import Path

import pytest
import trio
from kits.commands import run
from serving.letters import TEMPLATE, make_letters_model

from psyche.errors import ConfigError, PsycheError
from psyche.serving.engine import Engine, make_command
from psyche.serving.gguf import find_gguf, make_gguf
from psyche.serving.model import ServedModel, read_model
from psyche.serving.requests import Chat, Turn
from psyche.serving.settings import ServeSettings

CONVERTS = "import sys; open(sys.argv[sys.argv.index('--outfile') + 1], 'w').write(' '.join(sys.argv[1:4]))"


@pytest.fixture
def model(tmp_path: Path) -> ServedModel:
    folder = make_letters_model(tmp_path / "model", 0)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return read_model(folder)


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with both programs alone, neither of which is ever run."""
    folder = tmp_path / "commands"
    folder.mkdir()
    for name in ("vllm", "llama-server"):
        (folder / name).touch(0o755)
    monkeypatch.setenv("PATH", str(folder))
    return folder


def test_a_program_of_others_is_bounded_by_what_the_model_and_the_user_say(model: ServedModel, commands: Path) -> None:
    def write(name: str, model: ServedModel = model, **settings: object) -> str:
        engine = ServeSettings(engine=name, parallel=3, **settings)  # pyright: ignore[reportArgumentType]
        return " ".join(make_command(model, engine, 9, Path("w.gguf")))

    assert write("llama-server") == (
        f"{commands}/llama-server -m w.gguf --host 127.0.0.1 --port 9 --parallel 3 --ctx-size 384"
    )
    assert write("vllm") == (
        f"{commands}/vllm serve {model.folder} --host 127.0.0.1 --port 9 --generation-config vllm --max-num-seqs 3"
    )
    followed = dataclasses.replace(model, is_copy=True)
    assert "--gpu-memory-utilization 0.45" in write("vllm", followed), "two of them share a GPU"
    assert "--gpu-memory-utilization" not in write("vllm", followed, swap="stop")
    said = write("vllm", followed, engine_args="--gpu-memory-utilization 0.2 --served-model-name 'a b'")
    assert said.endswith("--gpu-memory-utilization 0.2 --served-model-name a b"), "the last of two counts"
    with pytest.raises(ConfigError, match=r"--engine-args: --port=1 is set by the gate, leave it out"):
        write("vllm", engine_args="--port=1")
    with pytest.raises(ConfigError, match=r"--engine-args \"'\": No closing quotation"):
        write("vllm", engine_args="'")


def test_a_program_of_others_gets_the_tokens_as_the_gate_has_counted_them(model: ServedModel, tmp_path: Path) -> None:
    engine = Engine(model, ServeSettings(engine="llama-server"), tmp_path)
    asked = Chat(messages=[Turn("user", "hi")], temperature=0.5, seed=(1 << 32) - 1)
    prompt, most = model.measure(asked)
    assert [model.tokenizer.id_to_token(one) for one in prompt] == list("u:hi;a:")
    body = engine._make_body(asked, prompt, most)
    assert "messages" not in body
    assert (body["prompt"], body["max_tokens"], body["temperature"], body["seed"]) == (prompt, 121, 0.5, 0)
    assert (body["top_k"], body["min_p"], body["stop_token_ids"]) == (0, 0, model.ends)


async def test_a_folder_without_a_gguf_file_is_converted_in_the_precision_of_its_weights(
    model: ServedModel, tmp_path: Path
) -> None:
    converter = tmp_path / "convert.py"
    settings = ServeSettings(engine="llama-server", gguf_converter=converter)
    with pytest.raises(ConfigError, match=r"--gguf-converter .*convert.py: there is no such file"):
        await make_gguf(model, settings, tmp_path, tmp_path / "log")
    converter.write_text(CONVERTS)
    made = await make_gguf(model, settings, tmp_path, tmp_path / "log")
    assert (made.parent, made.read_text()) == (tmp_path, f"{model.folder} --outtype f32")
    assert find_gguf(model.folder) is None, "nothing is left in a user's folder"
    converter.write_text("print('no such tokenizer'); raise SystemExit(3)")
    with pytest.raises(PsycheError, match=r"convert.py cannot convert model/\w+, exit code 3:\n  no such tokenizer"):
        await make_gguf(model, settings, tmp_path, tmp_path / "log")
    pid = tmp_path / "pid"
    says = f"import os, time; print(os.getpid(), file=open({str(pid)!r}, 'w'), flush=True); time.sleep(600)"
    converter.write_text(says)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(make_gguf, model, settings, tmp_path, tmp_path / "log")
        while not pid.exists() or not pid.read_text():
            await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    assert not Path(f"/proc/{pid.read_text().strip()}").exists(), "it ends with its task"


def test_what_llama_server_lacks_is_said_before_the_start(model: ServedModel, commands: Path) -> None:
    call = ["model", "serve", model.folder, "--engine", "llama-server"]
    said = run(*call, code=1).stderr
    assert "reads a GGUF file, which llama.cpp's convert_hf_to_gguf.py makes; name that with --gguf-converter" in said
    said = run("model", "serve", model.folder, "--engine", "vllm", "--gguf-converter", sys.executable, code=1).stderr
    assert "is for --engine llama-server, leave it out" in said
    assert "--batch, --device: are for transformers, and --engine is llama" in run(*call, "--batch", code=1).stderr
    for name in ("a.gguf", "b.gguf"):
        (model.folder / name).touch()
    assert "model has 2 GGUF files; leave one of them there" in run(*call, code=1).stderr
