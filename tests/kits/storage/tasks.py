"""Data sets of the ten tasks as the Hub converts them: their files and columns, with made-up rows."""

import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any, Final

import pyarrow as pa
from pyarrow import parquet

from psyche.evals.tasks import TASKS

WORDS: Final = ("water", "light", "the", "river", "of", "plants", "stone", "animals", "a", "rises", "moon", "not")
MARKED: Final = "[header] How to swim [title] Go  in."


def write_data(folder: Path, rows: int, *, words: int = 12) -> Path:
    """Write all data sets below a folder, `rows` rows for each split, in sentences of up to `words` words."""
    for name, raw in make_data(rows, words).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(raw)
    return folder


def make_data(rows: int, words: int) -> dict[str, bytes]:
    """The files by their paths, which begin with owner/name."""
    random = Random(0)
    return {
        f"{path}/0000.parquet": to_parquet([make_row(name, number, random, words) for number in range(rows)])
        for name, path in list_splits()
    }


def list_splits() -> Iterator[tuple[str, str]]:
    """A task's name, and a folder of the data set that it reads."""
    defaults = {"hellaswag": "default", "mmlu_pro": "default", "piqa": "plain_text"}
    for task in TASKS.values():
        for subset in task.subsets or (defaults[task.name],):
            for split in (task.split, task.shots_split):
                yield task.name, f"{task.dataset}/{subset}/{split}"


def to_parquet(rows: list[dict[str, Any]]) -> bytes:
    out = io.BytesIO()
    parquet.write_table(pa.Table.from_pylist(rows), out)
    return out.getvalue()


def make_row(name: str, number: int, random: Random, words: int = 12) -> dict[str, Any]:
    def say(count: int = words) -> str:
        return " ".join(random.choices(WORDS, k=random.randint(1, count)))

    four = [say() for _ in range(4)]
    options = {"text": four, "label": random.choice([["A", "B", "C", "D"], ["1", "2", "3", "4"]])}
    right = random.randrange(4)
    made: Mapping[str, dict[str, Any]] = {
        "arc": {"id": f"x{number}", "question": f"{say()}?", "choices": options, "answerKey": options["label"][right]},
        "boolq": {"question": say(), "passage": say(4 * words), "idx": number, "label": right % 2},
        "ceval": {"id": number, "question": say(), "A": four[0], "B": four[1], "C": four[2], "D": four[3],
                  "answer": "ABCD"[right], "explanation": ""},
        "hellaswag": {"ind": number, "activity_label": random.choice(["Swimming", "Running"]), "ctx_a": MARKED,
                      "ctx_b": say(), "ctx": say(), "endings": [f"{one} [step] on." for one in four],
                      "source_id": "w", "split": "val", "split_type": "x", "label": str(right)},
        "mmlu": {"question": f"{say()} ", "subject": random.choice(["high_school_biology", "law"]), "choices": four,
                 "answer": right},
        "mmlu_pro": {"question_id": number, "question": say(), "options": [*four, say()], "answer": "ABCD"[right],
                     "answer_index": right, "cot_content": f"A: Let's think step by step. {say()}. The answer is "
                     f"({'ABCD'[right]}).", "category": random.choice(["law", "math"]), "src": "x"},
        "openbookqa": {"id": f"x{number}", "question_stem": say(), "choices": options,
                       "answerKey": options["label"][right]},
        "piqa": {"goal": say(), "sol1": four[0], "sol2": four[1], "label": right % 2},
    }  # fmt: skip
    return made.get(name) or made[name.partition("_")[0]]
