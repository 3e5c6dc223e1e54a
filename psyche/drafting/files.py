"""The text of a new run's files. Keys of run.toml and data.toml are explained by what the schema says of them."""

import shlex
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from psyche.config.model_schema import DecayContent, DistroContent, LlmTable, LocalData, LocalFolder, ServerData
from psyche.config.rewrite import Value, format_value
from psyche.config.schema import AccessTable, ConfigTable, DataFile, MetadataTable, RunFile
from psyche.config.table import Table, describe_key
from psyche.config.values import TOKEN_SIZE_BYTES
from psyche.drafting.model_choice import ModelChoice
from psyche.drafting.plan import Answers, Plan
from psyche.telemetry.text import format_count, format_number

RUN_FILE: Final = "run.toml"
DATA_FILE: Final = "data.toml"
MODEL_FILE: Final = "model.toml"
MODEL_FOLDER: Final = "model"
DATA_FOLDER: Final = "data"
WIDTH: Final = 100

_MODEL_NOTES: Final = {
    "model_type": "kind of the model; only Llama models can be trained",
    "vocab_size": "tokens of the vocabulary, at least the tokenizer's; a multiple of 64 is cut well into chunks",
    "hidden_size": "width of the model; num_attention_heads must divide it",
    "intermediate_size": "width of the inner layer; about 8/3 of hidden_size",
    "num_hidden_layers": "layers; more of them make the model larger and slower in proportion",
    "num_attention_heads": "heads of the attention; hidden_size / num_attention_heads is usually 64 or 128",
    "num_key_value_heads": "heads of keys and values; must divide num_attention_heads",
    "max_position_embeddings": "longest sequence in tokens; at least max_seq_len of run.toml",
    "rope_theta": "base of the position encoding",
    "rms_norm_eps": "added to the variance in norms",
    "initializer_range": "standard deviation of the first weights",
    "tie_word_embeddings": "true: the output layer is the embedding, which saves vocab_size x hidden_size parameters",
    "bos_token_id": "token with which a text begins",
    "eos_token_id": "token with which a text ends; the tokenizer's",
}


@dataclass
class _Text:
    lines: list[str] = field(default_factory=list[str])

    def say(self, comment: str) -> None:
        self.lines += textwrap.wrap(comment, WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)

    def open(self, header: str, comment: str = "") -> None:
        self.lines.append("")
        if comment:
            self.say(comment)
        self.lines.append(f"[{header}]")

    def set(self, table: type[Table], values: Mapping[str, Value], notes: Mapping[str, str] | None = None) -> None:
        described = {one.alias or name: describe_key(one) for name, one in table.model_fields.items()}
        for name, value in values.items():
            note = (notes or {}).get(name, "")
            text = described[name] + (f": {note}" if note else "")
            self.say(text if text.startswith(("true:", "false:")) else text[:1].upper() + text[1:])
            self.lines.append(f"{name} = {format_value(value)}")

    def __str__(self) -> str:
        return "\n".join(self.lines) + "\n"


def write_run_file(answers: Answers, model: ModelChoice, plan: Plan) -> str:
    text = _Text()
    who = f"{format_number(answers.members, 'member')} that {'trains' if answers.members == 1 else 'train'}"
    text.say(
        f"A run of {who} a model of {format_count(model.parameters)} parameters for {answers.steps:,} steps, written "
        "by `psyche init`. `psyche server validate-config` checks it after changes; docs/configuration.md lists every "
        "key." + answers.backend.about
    )
    text.set(RunFile, {"run_id": answers.run_id})
    text.open("config")
    text.set(ConfigTable, plan.config, _get_config_notes(answers, model))
    if answers.backend.traits.keeps_access:
        text.open("access", "Who may join: `psyche run allow KEY` lets a key in, while the run goes on too.")
        text.set(AccessTable, {"open": False})
    text.open("metadata", "For people, and for `psyche simulate`.")
    size = {"num_parameters": model.parameters, "vocab_size": model.vocab_size}
    text.set(MetadataTable, {"name": answers.run_id, **size})
    text.open("model.LLM")
    settings: dict[str, Value] = {"architecture": "HfLlama", "data_type": "Pretraining"}
    text.set(LlmTable, {**settings, "max_seq_len": model.sequence_tokens,
                        "cold_start_warmup_steps": plan.cold_start_steps})  # fmt: skip
    text.open("model.LLM.checkpoint.Local", "The first weights. Members that lack the folder fetch it from others.")
    text.set(LocalFolder, {"path": MODEL_FOLDER})
    _write_location(text, answers)
    _write_training(text, answers, model, plan)
    return str(text)


def _write_location(text: _Text, answers: Answers) -> None:
    key = "model.LLM.data_location"
    if answers.backend.data_server is None:
        text.open(key, "A chain serves no data: each member reads it itself, and needs data.toml and the token files.")
        text.set(LocalData, {"Local": DATA_FILE})
    else:
        text.open(key, "The server serves what data.toml names; the port must be reachable too.")
        text.set(ServerData, {"Server": answers.backend.data_server})


def _write_training(text: _Text, answers: Answers, model: ModelChoice, plan: Plan) -> None:
    recipe = model.recipe
    text.open("model.LLM.lr_schedule.Cosine", "The learning rate: a warm-up, then half a cosine. Others are Constant, "
              "Linear and WarmupStableDecay.")  # fmt: skip
    rates: dict[str, Value] = {
        "base_lr": recipe.base_lr, "warmup_init_lr": 0.0, "warmup_steps": plan.schedule_warmup_steps,
        "total_steps": answers.steps + 1, "final_lr": plan.final_lr,
    }  # fmt: skip
    text.set(DecayContent, rates)
    text.open("model.LLM.optimizer.Distro")
    text.set(DistroContent, {
        "clip_grad_norm": 1.0, "compression_decay": recipe.decay, "compression_chunk": recipe.chunk,
        "compression_topk": recipe.topk, "quantize_1bit": True,
    })  # fmt: skip


def _get_config_notes(answers: Answers, model: ModelChoice) -> dict[str, str]:
    samples = model.recipe.member_samples
    whom = "the member" if answers.members == 1 else f"each of {answers.members} members"
    return {
        "total_steps": f"steps 1 to {answers.steps} are trained",
        "global_batch_size_start": f"{samples} for {whom}",
    }


def write_data_file(folder: str, token_size_bytes: int, sequence_tokens: int, seed: str, *, for_members: bool) -> str:
    text = _Text()
    text.say(
        "What the members train on, written by `psyche init`. Each of them needs this very file and the same token "
        "files, below its --local-root."
        if for_members
        else "What the server serves to the members, written by `psyche init`. Only the server needs it."
    )
    size = next(name for name, size_bytes in TOKEN_SIZE_BYTES.items() if size_bytes == token_size_bytes)
    text.set(DataFile, {"dir": folder, "token_size": size, "seq_len": sequence_tokens, "shuffle_seed": seed})
    return str(text)


def write_model_file(model: ModelChoice, tokenizer_path: Path | None) -> str:
    """The text of model.toml, from which first weights are made, with these files of a tokenizer beside them."""
    text = _Text()
    text.say(
        "The shape of the model: fields of a Hugging Face Llama, written by `psyche init`. The weights in the folder "
        f"{MODEL_FOLDER} are made from it; after a change, remove that folder and make them again:"
    )
    tokenizer = "" if tokenizer_path is None else f" --tokenizer {shlex.quote(str(tokenizer_path.resolve()))}"
    text.lines.append(f"# psyche model init --config {MODEL_FILE} --output {MODEL_FOLDER}{tokenizer}")
    for name, value in model.settings.items():
        note = _MODEL_NOTES[name]
        text.say(note[:1].upper() + note[1:])
        text.lines.append(f"{name} = {format_value(value)}")
    return str(text)
