"""How much faster choices are scored after a context that goes through the model once, than each with its context.

A Llama of 0.9 million parameters on one thread; contexts are the five examples and the question of made-up tasks, in
bytes, four choices each. Both ways score the same choices; the log-likelihoods are compared too.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
import trio
from _table import build_parser, finish, print_table

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from kits.models import write_config
from kits.storage.tasks import write_data

from psyche.evals.requests import Request, encode_request
from psyche.evals.sources import load_documents
from psyche.evals.tasks import TASKS
from psyche.modeling.architecture import build_random, read_blueprint
from psyche.modeling.inference.scoring import ChoiceScorer, Scored
from psyche.storage.port import StorageOptions

MODEL: Final[dict[str, object]] = {
    "vocab_size": 256, "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 4, "max_position_embeddings": 4_096,
}  # fmt: skip
SHORTEST: Final = 600
DOCUMENTS: Final = 12


def read(task: str, folder: Path, shots: int, count: int) -> list[Request]:
    load = partial(load_documents, shots=shots, seed=1, limit=None)
    documents = trio.run(load, TASKS[task], folder, StorageOptions()).documents
    found = [encode_request(lambda text: list(text.encode()), one.context, one.choices, 0) for one in documents]
    return [one for one in found if one is not None and (not shots or len(one.context) >= SHORTEST)][:count]


def measure(score: Callable[[list[int], list[list[int]]], list[Scored]], asked: list[Request]) -> tuple[float, Any]:
    started = time.perf_counter()
    found = [score(one.context, one.choices) for one in asked]
    return time.perf_counter() - started, found


def score_one_by_one(scorer: ChoiceScorer, context: list[int], choices: list[list[int]]) -> list[Scored]:
    return [scorer.score(context, [choice])[0] for choice in choices]


def main() -> None:
    options = build_parser(__doc__).parse_args()
    torch.set_num_threads(1)
    rows: list[list[object]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = write_data(folder / "data", 80, words=30)
        config = write_config(folder / "config.json", "llama", **MODEL)
        model = build_random(read_blueprint(config)).eval()
        together, apart = ChoiceScorer(model), ChoiceScorer(model)
        apart.shares_context = False
        for task, shots in (("arc_easy", 5), ("hellaswag", 5), ("mmlu", 5), ("arc_easy", 0)):
            asked = read(task, data, shots, 3 if options.quick else DOCUMENTS)
            measure(together.score, asked[:1])
            shared_s, ours = measure(together.score, asked)
            plain_s, others = measure(partial(score_one_by_one, apart), asked)
            flat = [
                (a[0], b[0]) for one, other in zip(ours, others, strict=True) for a, b in zip(one, other, strict=True)
            ]
            context = sum(len(one.context) for one in asked) // len(asked)
            difference = max(abs(a - b) for a, b in flat)
            rows.append([task, shots, len(asked), context, plain_s, shared_s, plain_s / shared_s, f"{difference:.0e}"])
    columns = ["task", "examples", "documents", "tokens", "each alone, s", "shared, s", "ratio", "difference"]
    print_table("scoring of choices", columns, rows)
    finish(options, {f"{row[0]}, {row[1]}": dict(zip(columns, row, strict=True)) for row in rows})


if __name__ == "__main__":
    main()
