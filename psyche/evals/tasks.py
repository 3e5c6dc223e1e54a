"""The ten tasks: data set, split, examples and metrics of each. Its questions are built from `questions`."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from psyche.errors import ConfigError
from psyche.evals.questions import (
    C_EVAL_SUBJECTS,
    ArcRow,
    BoolQRow,
    CEvalRow,
    ClozeMmluRow,
    HellaSwagRow,
    MmluProRow,
    MmluRow,
    OpenBookRow,
    PiqaRow,
    Row,
)

ABOUT: Final = "The following are multiple choice questions (with answers) about {}."
REASON: Final = (
    ' Think step by step and then finish your answer with "the answer is (X)" where X is the correct letter choice.\n'
)


class Metric(StrEnum):
    """How the choice of a model is found: the one of the highest log-likelihood, after what is said here."""

    ACC = "acc"
    ACC_NORM = "acc_norm"  # divided by the choice's length in bytes
    ACC_UNCOND = "acc_uncond"  # minus its log-likelihood after `Answer:` alone


BY_TEXT: Final = (Metric.ACC_NORM, Metric.ACC)
ALL: Final = (*BY_TEXT, Metric.ACC_UNCOND)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """`subsets` are those of the data set, () where it has one alone; the first of `metrics` is the main one.

    `shots`: how many examples stand before a question unless a user says otherwise, taken from `shots_split`.
    """

    name: str
    dataset: str
    subsets: tuple[str, ...] = ()
    split: str
    shots_split: str
    row: type[Row]
    metrics: tuple[Metric, ...]
    preamble: str = ""  # before the examples; {} is the group
    shots: int = 0
    shuffles_shots: bool = False  # else the first ones of the split are the examples
    is_generated: bool = False  # the model writes an answer, instead of scoring choices


_ARC: Final = {"dataset": "allenai/ai2_arc", "split": "test", "shots_split": "train", "row": ArcRow, "metrics": ALL}
TASKS: Final = {
    task.name: task
    for task in (
        Task(name="arc_challenge", subsets=("ARC-Challenge",), **_ARC),
        Task(name="arc_easy", subsets=("ARC-Easy",), **_ARC),
        Task(
            name="boolq", dataset="aps/super_glue", subsets=("boolq",), split="validation", shots_split="train",
            row=BoolQRow, metrics=(Metric.ACC,), shuffles_shots=True,
        ),
        Task(
            name="ceval_valid", dataset="ceval/ceval-exam", subsets=tuple(C_EVAL_SUBJECTS), split="val",
            shots_split="dev", row=CEvalRow, metrics=(Metric.ACC,),
            preamble="以下是中国关于{}的单项选择题，请选出其中的正确答案。\n\n",  # noqa: RUF001
        ),
        Task(
            name="hellaswag", dataset="Rowan/hellaswag", split="validation", shots_split="train", row=HellaSwagRow,
            metrics=BY_TEXT,
        ),
        Task(
            name="mmlu", dataset="cais/mmlu", subsets=("all",), split="test", shots_split="dev", row=MmluRow,
            metrics=(Metric.ACC,), preamble=f"{ABOUT}\n\n",
        ),
        Task(
            name="mmlu_cf", dataset="cais/mmlu", subsets=("all",), split="test", shots_split="validation",
            row=ClozeMmluRow, metrics=ALL, preamble=f"{ABOUT}\n\n",
        ),
        Task(
            name="mmlu_pro", dataset="TIGER-Lab/MMLU-Pro", split="test", shots_split="validation", row=MmluProRow,
            metrics=(Metric.ACC,), preamble=ABOUT + REASON, shots=5, is_generated=True,
        ),
        Task(
            name="openbookqa", dataset="allenai/openbookqa", subsets=("main",), split="test", shots_split="validation",
            row=OpenBookRow, metrics=BY_TEXT,
        ),
        Task(
            name="piqa", dataset="ybisk/piqa", split="validation", shots_split="train", row=PiqaRow, metrics=ALL,
        ),
    )
}  # fmt: skip


def find_tasks(names: str, option: str = "--tasks") -> list[Task]:
    """The tasks of a list with commas; in names, capitals and other signs than letters and digits count as `_`.

    Raises:
        ConfigError: there is no such task, or one is there twice.
    """
    found: list[Task] = []
    for named in names.split(","):
        name = "".join(sign if sign.isalnum() else "_" for sign in named.strip().lower())
        if name not in TASKS:
            raise ConfigError(f"{option}: there is no task {named.strip()[:100]!r}; there are {', '.join(TASKS)}")
        if TASKS[name] in found:
            raise ConfigError(f"{option}: {name} is there twice")
        found.append(TASKS[name])
    return found
