"""Log-likelihoods and choices of `psyche eval` beside those of lm-evaluation-harness, for five families of models.

Needs lm-eval, which nothing else here does, in an environment of its own:

    python -m venv build/lm-eval && build/lm-eval/bin/pip install -e '.[train]' lm-eval
    build/lm-eval/bin/python benchmarks/eval_parity.py

The data sets are made up, in the columns of the real ones. Prompts are compared with those that lm-eval makes of the
same rows, too. The script fails if a log-likelihood differs by over 1e-4, or a choice or a prompt at all.
"""

import json
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
import trio
from _table import build_parser, finish, print_table
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from kits.models import write_config
from kits.storage.tasks import write_data

from psyche.evals.documents import Document
from psyche.evals.requests import encode_request
from psyche.evals.sources import load_documents
from psyche.evals.tasks import TASKS
from psyche.modeling.inference.scoring import ChoiceScorer
from psyche.modeling.model import init_model
from psyche.storage.port import StorageOptions

POSITIONS: Final = {"max_position_embeddings": 1_024}
FAMILIES: Final[dict[str, dict[str, object]]] = {
    "llama": POSITIONS, "gpt2": {"n_positions": 1_024}, "qwen3_moe": POSITIONS, "gemma3_text": POSITIONS, "mamba2": {},
}  # fmt: skip
SCORED: Final = ("arc_easy", "boolq", "hellaswag", "mmlu", "piqa")
PROMPTED: Final = ("arc_challenge", "arc_easy", "boolq", "hellaswag", "openbookqa", "piqa")
VOCABULARY: Final = 512
SPACED: Final = 5  # each such document's context ends with a blank
BOUND: Final = 1e-4


def read(task: str, data: Path, rows: int, *, shots: int) -> tuple[Document, ...]:
    load = partial(load_documents, shots=shots, seed=1, limit=rows)
    return trio.run(load, TASKS[task], data, StorageOptions()).documents


def train_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """Merges of bytes, and a token at the beginning of each text, as Llama's has."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    names = ["<s>", "</s>"]
    tokenizer.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=names, initial_alphabet=alphabet)
    )
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>")


def build(family: str, folder: Path, changes: dict[str, object]) -> Any:
    config = write_config(folder / f"{family}.json", family, vocab_size=VOCABULARY, initializer_range=0.2, **changes)
    init_model(config, folder / family, 0)
    return AutoModelForCausalLM.from_pretrained(folder / family, dtype=torch.float32).eval()


def score(model: Any, tokenizer: Any, documents: list[Document]) -> list[list[tuple[float, bool]]]:
    scorer = ChoiceScorer(model)
    found: list[list[tuple[float, bool]]] = []
    for document in documents:
        request = encode_request(lambda text: tokenizer(text).input_ids, document.context, document.choices, 0)
        assert request is not None
        found.append(scorer.score(request.context, request.choices))
    return found


def score_with_lm_eval(model: Any, tokenizer: Any, documents: list[Document]) -> list[list[tuple[float, bool]]]:
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    judge = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=8, max_length=1_024)
    asked = [(one.context, f" {choice}") for one in documents for choice in one.choices]
    requests = [Instance("loglikelihood", {}, pair, number) for number, pair in enumerate(asked)]
    answers = iter(judge.loglikelihood(requests, disable_tqdm=True))
    return [[next(answers) for _ in one.choices] for one in documents]


def compare(model: Any, tokenizer: Any, documents: list[Document]) -> tuple[float, int, int]:
    """The greatest difference, choices that differ, and tokens of which the two say different things."""
    pairs = list(zip(score(model, tokenizer, documents), score_with_lm_eval(model, tokenizer, documents), strict=True))
    each = [(a, b) for ours, theirs in pairs for a, b in zip(ours, theirs, strict=True)]
    chosen = [
        [max(range(len(one)), key=lambda n, one=one: one[n][0]) for one in (ours, theirs)] for ours, theirs in pairs
    ]
    return max(abs(a[0] - b[0]) for a, b in each), sum(a != b for a, b in chosen), sum(a[1] != b[1] for a, b in each)


def count_other_prompts(task: str, data: Path) -> int:
    """Documents that lm-eval makes of the rows of a task and that we do not."""
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.tasks import TaskManager
    from lm_eval.tasks._yaml_loader import load_yaml

    config = load_yaml(TaskManager().task_index[task].yaml_path)
    of = TASKS[task]
    (file,) = (data / of.dataset).glob(f"{of.subsets[0] if of.subsets else '*'}/{of.split}/*.parquet")
    files = {of.split: str(file)}
    config |= {"dataset_path": "parquet", "dataset_name": None, "dataset_kwargs": {"data_files": files}}
    config |= dict.fromkeys(("training_split", "validation_split", "test_split", "fewshot_split"))
    config |= {f"{of.split}_split": of.split}
    made = ConfigurableTask(config=config)
    theirs = {
        json.dumps([made.doc_to_text(doc), made.doc_to_choice(doc), made.doc_to_target(doc)])
        for doc in (made.test_docs() or made.validation_docs())
    }
    ours = {json.dumps([one.context, one.choices, one.answer]) for one in read(task, data, 1_000, shots=0)}
    assert theirs, task
    return len(theirs - ours)


def measure(rows: int) -> Iterator[list[object]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = write_data(folder / "data", rows)
        documents = [one for task in SCORED for one in read(task, data, rows, shots=2)]
        documents = [
            one._replace(context=one.context + " " * (number % SPACED == 0)) for number, one in enumerate(documents)
        ]
        tokenizer = train_tokenizer([one.context for one in documents])
        others = sum(count_other_prompts(task, data) for task in PROMPTED)
        for family, changes in FAMILIES.items():
            model = build(family, folder, changes)
            difference, choices, greedy = compare(model, tokenizer, documents)
            yield [family, len(documents), f"{difference:.1e}", choices, greedy, others]


def main() -> None:
    parser = build_parser(__doc__)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = list(measure(8 if options.quick else 80))
    columns = ["family", "documents", "greatest difference", "other choices", "other greedy", "other prompts"]
    print_table("psyche eval beside lm-eval", columns, rows)
    finish(options, {str(row[0]): dict(zip(columns, row, strict=True)) for row in rows})
    assert all(float(str(row[2])) <= BOUND and not any(row[3:]) for row in rows), "it differs"


if __name__ == "__main__":
    main()
