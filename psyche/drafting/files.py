"""The text of a new run's files. Keys of run.toml and data.toml are explained by what the schema says of them."""

import shlex
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from psyche.config.model_schema import (
    Bucket,
    DecayContent,
    DistroContent,
    Gcp,
    HttpContent,
    HubRepo,
    LlmTable,
    LocalData,
    LocalFolder,
    NumberedFiles,
    PreprocessedData,
    SeededShuffle,
    ServerData,
    SingleUrl,
    WeightedHttpData,
)
from psyche.config.rewrite import Value, format_value
from psyche.config.schema import AccessTable, ConfigTable, DataFile, MetadataTable, RunFile
from psyche.config.table import Table, describe_key
from psyche.config.values import TOKEN_SIZE_BYTES, get_variant_name
from psyche.core.state.enums import CheckpointKind, DataLocationKind, HttpLocationKind
from psyche.core.state.settings import Checkpoint, DataLocation
from psyche.drafting.data_choice import DataChoice
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
    "model_type": "kind of the model, as transformers names it; each has fields of its own",
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


def write_run_file(answers: Answers, model: ModelChoice, data: DataChoice, plan: Plan) -> str:
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
    data_type = "Finetuning" if data.has_labels else "Pretraining"
    settings: dict[str, Value] = {"architecture": "HfAuto", "data_type": data_type}
    text.set(LlmTable, {**settings, "max_seq_len": model.sequence_tokens,
                        "cold_start_warmup_steps": plan.cold_start_steps})  # fmt: skip
    _write_checkpoint(text, model.source)
    if data.location is None:
        _write_own_data(text, answers)
    else:
        _write_remote_data(text, data.location)
    _write_training(text, answers, model, plan)
    return str(text)


def _write_checkpoint(text: _Text, source: Checkpoint | None) -> None:
    key = "model.LLM.checkpoint"
    if source is None:
        text.open(f"{key}.Local", "The first weights. Members that lack the folder fetch it from others.")
        text.set(LocalFolder, {"path": MODEL_FOLDER})
        return
    is_hub = source.kind is CheckpointKind.HUB
    text.open(f"{key}.{get_variant_name(source.kind)}", "The first weights. Members read them there, and from others.")
    name, place = ("repo_id", "revision") if is_hub else ("bucket", "prefix")
    values: dict[str, Value] = {name: source.name}
    if source.revision:
        values[place] = source.revision
    text.set(HubRepo if is_hub else Bucket, values)


def _write_remote_data(text: _Text, location: DataLocation) -> None:
    key, about = "model.LLM.data_location", "Each member reads the data there by itself."
    if location.kind is not DataLocationKind.HTTP:
        text.open(key, about)
        table = PreprocessedData if location.kind is DataLocationKind.PREPROCESSED else WeightedHttpData
        text.set(table, {get_variant_name(location.kind): location.address})
        return
    http, size, seed = location.http, get_variant_name(location.token_size), location.shuffle_seed
    text.open(f"{key}.Http", about)
    text.set(HttpContent, {"token_size_in_bytes": size, **({} if seed else {"shuffle": "DontShuffle"})})
    if seed:
        text.open(f"{key}.Http.shuffle", "Each pass over the data has an order of its own.")
        text.set(SeededShuffle, {"Seeded": seed.hex()})
    if http.kind is HttpLocationKind.SINGLE_URL:
        text.open(f"{key}.Http.location")
        text.set(SingleUrl, {"SingleUrl": http.url})
        return
    text.open(f"{key}.Http.location.{get_variant_name(http.kind)}")
    table = Gcp if http.kind is HttpLocationKind.GCP else NumberedFiles
    text.set(table, {one.alias or name: getattr(http, name) for name, one in table.model_fields.items()})


def _write_own_data(text: _Text, answers: Answers) -> None:
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
        "The shape of the model: fields of a Hugging Face config, written by `psyche init`. The weights in the folder "
        f"{MODEL_FOLDER} are made from it; after a change, remove that folder and make them again:"
    )
    tokenizer = "" if tokenizer_path is None else f" --tokenizer {shlex.quote(str(tokenizer_path.resolve()))}"
    text.lines.append(f"# psyche model init --config {MODEL_FILE} --output {MODEL_FOLDER}{tokenizer}")
    for name, value in model.settings.items():
        note = _MODEL_NOTES[name]
        text.say(note[:1].upper() + note[1:])
        text.lines.append(f"{name} = {format_value(value)}")
    return str(text)
