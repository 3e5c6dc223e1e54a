"""`psyche model serve` as a process, and what plain transformers would answer."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from psyche.serving.settings import CONVERTER

LLAMA = ("--engine", "llama-server")
llama = pytest.param(
    LLAMA, id="llama-server", marks=[pytest.mark.whole, pytest.mark.skipif(
        not all(map(shutil.which, ("llama-server", CONVERTER))),
        reason=f"llama-server and {CONVERTER} of llama.cpp are not both on the PATH",
    )],
)  # fmt: skip


class Server:
    """The command, its address, and what it has said until now."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        assert process.stderr is not None
        self.process = process
        self.lines: list[str] = []
        self.url = self.wait_for("serving at ").split()[-1]

    def wait_for(self, words: str) -> str:
        """The next line with these words; fails at the end of the command, or after the test's own limit."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if words in line:
                return line
        raise AssertionError(f"it has ended: {''.join(self.lines)}")


@contextmanager
def open_server(*words: object) -> Iterator[Server]:
    command = [sys.executable, "-m", "psyche", "model", "serve", *map(str, words), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield Server(process)
        finally:
            process.terminate()
            process.wait(60)


def write_plainly(folder: Path, text: str, tokens: int, *, is_chat: bool = False) -> str:
    """The most likely token, again and again, of plain transformers."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    if is_chat:
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
        )
    found = tokenizer(text, return_tensors="pt", add_special_tokens=not is_chat)
    with torch.no_grad():
        ids = model.generate(**found, max_new_tokens=tokens, do_sample=False, pad_token_id=0)
    return tokenizer.decode(ids[0, found.input_ids.shape[1] :], skip_special_tokens=True)
