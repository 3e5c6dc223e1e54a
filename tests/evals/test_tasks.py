"""What each task asks: contexts with their examples, choices, and the hash that names them."""

import msgspec
import pytest

from psyche.errors import ConfigError, DataError
from psyche.evals.documents import Document, Documents, build_documents
from psyche.evals.questions import Question
from psyche.evals.tasks import TASKS, find_tasks

OPTIONS = {"text": ["ice", "fire"], "label": ["1", "2"]}
FOUR = ["w", "x", "y", "z"]
MMLU = {"question": " Why? ", "subject": "high_school_biology", "choices": FOUR, "answer": 2}
SWIM = {
    "activity_label": "Swim", "ctx_a": "Dive [title] Jump  in.", "ctx_b": "he", "endings": ["[a] up.", "down."],
    "label": "1",
}  # fmt: skip
PRO = {
    "question": "Why?", "options": ["a ", "b"], "answer_index": 1, "category": "law",
    "cot_content": "A: Let's think step by step. So the answer is (B).",
}  # fmt: skip
LISTED = "Why?\nA. w\nB. x\nC. y\nD. z\n"
ABOUT = "The following are multiple choice questions (with answers) about high school biology.\n\n"
# Rows as the data sets have them; the context, choices and answer that a task makes of them.
CASES: dict[str, tuple[dict[str, object], str, tuple[str, ...], int]] = {
    "arc_easy": ({"question": "Hot?", "choices": OPTIONS, "answerKey": "2"},
                 "Question: Hot?\nAnswer:", ("ice", "fire"), 1),
    "arc_challenge": ({"question": "Hot?", "choices": OPTIONS, "answerKey": "1"},
                      "Question: Hot?\nAnswer:", ("ice", "fire"), 0),
    "boolq": ({"passage": "P.", "question": "is it", "label": 1}, "P.\nQuestion: is it?\nAnswer:", ("no", "yes"), 1),
    "ceval_valid": ({"question": "Why?", **dict(zip("ABCD", FOUR, strict=True)), "answer": "D"},
                    "以下是中国关于法学的单项选择题，请选出其中的正确答案。\n\n" + LISTED + "答案：", tuple("ABCD"), 3),  # noqa: RUF001
    "hellaswag": (SWIM, "Swim: Dive. Jump in. He", (" up.", "down."), 1),
    "mmlu": (MMLU, ABOUT + LISTED + "Answer:", tuple("ABCD"), 2),
    "mmlu_cf": (MMLU, ABOUT + "Question: Why?\nAnswer:", tuple(FOUR), 2),
    "openbookqa": ({"question_stem": "Warm is", "choices": OPTIONS, "answerKey": "2 "}, "Warm is", ("ice", "fire"), 1),
    "piqa": ({"goal": "Cool it", "sol1": "ice", "sol2": "fire", "label": 0},
             "Question: Cool it\nAnswer:", ("ice", "fire"), 0),
}  # fmt: skip


def ask(name: str, row: dict[str, object], subset: str = "law") -> Question:
    return msgspec.convert(row, TASKS[name].row).ask(subset)


def build(name: str, questions: list[Question], examples: list[Question], **how: int) -> Documents:
    return build_documents(TASKS[name], questions, examples, source="x", **{"shots": 0, "seed": 42, **how})


@pytest.mark.parametrize("name", CASES)
def test_a_row_becomes_the_published_prompt_of_its_task(name: str) -> None:
    row, context, choices, answer = CASES[name]
    assert build(name, [ask(name, row)], []).documents == (Document(context, choices, answer),)


def test_a_task_that_the_model_writes_shows_how_others_were_reasoned() -> None:
    (found,) = build("mmlu_pro", [ask("mmlu_pro", PRO)], [ask("mmlu_pro", PRO)], shots=5).documents
    asked = "Question:\nWhy?\nOptions:\nA. a\nB. b\nAnswer: Let's think step by step."
    preamble = (
        "The following are multiple choice questions (with answers) about law. Think step by step and then finish "
        'your answer with "the answer is (X)" where X is the correct letter choice.\n'
    )
    assert found == Document(f"{preamble}{asked} So the answer is (B).\n\n{asked}", ("A", "B"), 1)


def make(text: str, group: str = "") -> Question:
    return Question(text, ("no", "yes"), 1, group)


def test_examples_are_the_first_ones_of_the_same_group() -> None:
    examples = [make("1", "law"), make("2", "art"), make("3", "law"), make("4", "law")]
    (found,) = build("hellaswag", [make("q", "law")], examples, shots=2).documents
    assert found.context == "1 yes\n\n3 yes\n\nq"
    (found,) = build("hellaswag", [make("q", "art")], examples, shots=2).documents
    assert found.context == "2 yes\n\nq", "fewer where the group has fewer"


def test_a_seed_draws_the_documents_and_the_examples_where_they_are_shuffled() -> None:
    many = [make(str(number)) for number in range(50)]
    found = {seed: build("boolq", many, many, shots=3, seed=seed, limit=10) for seed in (1, 2)}
    assert found[1] == build("boolq", many, many, shots=3, seed=1, limit=10)
    asked = {seed: [one.context.split("\n\n") for one in of.documents] for seed, of in found.items()}
    assert len({context[-1] for context in asked[1]}) == 10
    assert {context[-1] for context in asked[1]} != {context[-1] for context in asked[2]}
    assert len({tuple(context[:3]) for context in asked[1]}) == 1, "all documents have the same examples"
    assert asked[1][0][:3] != asked[2][0][:3]
    all_of_them = build("boolq", many, many, seed=1).documents
    assert [one.context for one in all_of_them[:10]] == [context[-1] for context in asked[1]]


def test_the_hash_is_of_all_that_is_asked() -> None:
    first = build("boolq", [make("a"), make("b")], [make("c")], shots=1)
    others = [
        build("boolq", [make("a"), make("b")], [make("c")]), build("boolq", [make("a")], [make("c")], shots=1),
        build("boolq", [make("a"), make("B")], [make("c")], shots=1), first._replace(seed=43),
        build("boolq", [make("a"), make("b")], [make("d")], shots=1), first._replace(task=TASKS["piqa"]),
    ]  # fmt: skip
    assert len({one.compute_hash() for one in [first, *others]}) == 7
    assert first._replace(source="elsewhere").compute_hash() == first.compute_hash()
    assert first.compute_hash().hex() == "96a1040b8e350ae0412abd6a1d6db5cabaad64df93f2527d84803f79ea539900"


def test_names_of_tasks_are_read_as_people_write_them() -> None:
    assert [task.name for task in find_tasks("ARC-Easy, mmlu pro,piqa")] == ["arc_easy", "mmlu_pro", "piqa"]
    with pytest.raises(ConfigError, match="no task 'glue'; there are arc_challenge, arc_easy"):
        find_tasks("piqa,glue")
    with pytest.raises(ConfigError, match="piqa is there twice"):
        find_tasks("piqa,PIQA")


def test_no_rows_are_no_documents() -> None:
    with pytest.raises(DataError, match="the split 'validation' of boolq has no rows"):
        build("boolq", [], [make("a")])
    with pytest.raises(DataError, match="the split 'train' of boolq has no rows"):
        build("boolq", [make("a")], [], shots=1)
