"""The rows of the data sets, each with the columns that a task reads, and the question that a row asks."""

import re
from typing import Final, NamedTuple

from msgspec import Struct

LETTERS: Final = "ABCDEFGHIJ"
REASONING: Final = "Let's think step by step."
_BRACKETED: Final = re.compile(r"\[.*?\]")


class Question(NamedTuple):
    """A text, what may follow it, and the index of what is right; `shown` is what follows it in an example.

    Examples are taken from the same `group`: a subject, an activity.
    """

    text: str
    choices: tuple[str, ...]
    answer: int
    group: str = ""
    shown: str = ""

    @property
    def example(self) -> str:
        return f"{self.text} {self.shown or self.choices[self.answer]}"


class Row(Struct):
    """A row of a data set: its columns are the fields."""

    def ask(self, subset: str) -> Question:
        """The question of a row in the `subset` of a data set.

        Raises:
            ValueError: the right answer is none of the choices.
        """
        raise NotImplementedError


class _Options(Struct):
    text: list[str]
    label: list[str]

    def ask(self, text: str, key: str) -> Question:
        return Question(text, tuple(self.text), self.label.index(key.strip()))


class ArcRow(Row):
    question: str
    choices: _Options
    answerKey: str  # noqa: N815 (the column's name)

    def ask(self, subset: str) -> Question:  # noqa: ARG002 (of no use to it)
        return self.choices.ask(f"Question: {self.question}\nAnswer:", self.answerKey)


class OpenBookRow(Row):
    question_stem: str
    choices: _Options
    answerKey: str  # noqa: N815

    def ask(self, subset: str) -> Question:  # noqa: ARG002
        return self.choices.ask(self.question_stem, self.answerKey)


class BoolQRow(Row):
    passage: str
    question: str
    label: int

    def ask(self, subset: str) -> Question:  # noqa: ARG002
        return Question(f"{self.passage}\nQuestion: {self.question}?\nAnswer:", ("no", "yes"), self.label)


class PiqaRow(Row):
    goal: str
    sol1: str
    sol2: str
    label: int

    def ask(self, subset: str) -> Question:  # noqa: ARG002
        return Question(f"Question: {self.goal}\nAnswer:", (self.sol1, self.sol2), self.label)


class HellaSwagRow(Row):
    activity_label: str
    ctx_a: str
    ctx_b: str
    endings: list[str]
    label: str

    def ask(self, subset: str) -> Question:  # noqa: ARG002
        text = _clean(f"{self.activity_label}: {self.ctx_a} {self.ctx_b.capitalize()}")
        return Question(text, tuple(map(_clean, self.endings)), int(self.label), self.activity_label)


def _clean(text: str) -> str:
    """Without the marks of WikiHow, where half of the texts come from."""
    return _BRACKETED.sub("", text.strip().replace(" [title]", ". ")).replace("  ", " ")


class MmluRow(Row):
    question: str
    subject: str
    choices: list[str]
    answer: int

    def ask(self, subset: str) -> Question:  # noqa: ARG002
        text = _list_options(self.question, self.choices) + "\nAnswer:"
        return Question(text, tuple(LETTERS[: len(self.choices)]), self.answer, self.subject.replace("_", " "))


class ClozeMmluRow(MmluRow):
    """The same, without the choices in the question."""

    def ask(self, subset: str) -> Question:  # noqa: ARG002
        text = f"Question: {self.question.strip()}\nAnswer:"
        return Question(text, tuple(self.choices), self.answer, self.subject.replace("_", " "))


class CEvalRow(Row):
    question: str
    A: str
    B: str
    C: str
    D: str
    answer: str

    def ask(self, subset: str) -> Question:
        choices = tuple("ABCD")
        text = _list_options(self.question, [self.A, self.B, self.C, self.D]) + "\n答案："  # noqa: RUF001
        return Question(text, choices, choices.index(self.answer.strip()), C_EVAL_SUBJECTS[subset])


class MmluProRow(Row):
    question: str
    options: list[str]
    answer_index: int
    category: str
    cot_content: str

    def ask(self, subset: str) -> Question:  # noqa: ARG002
        options = [option.strip() for option in self.options]
        text = f"Question:\n{self.question}\nOptions:{_list_options('', options)}\nAnswer: {REASONING}"
        shown = self.cot_content.removeprefix("A: ").removeprefix(REASONING).strip()
        return Question(text, tuple(LETTERS[: len(options)]), self.answer_index, self.category, shown)


def _list_options(question: str, options: list[str]) -> str:
    lines = (f"\n{letter}. {option}" for letter, option in zip(LETTERS, options, strict=False))
    return question.strip() + "".join(lines)


# Subsets of C-Eval, and the subject as its questions name it.
C_EVAL_SUBJECTS: Final = {
    "accountant": "注册会计师", "advanced_mathematics": "高等数学", "art_studies": "艺术学",
    "basic_medicine": "基础医学", "business_administration": "工商管理",
    "chinese_language_and_literature": "中国语言文学", "civil_servant": "公务员", "clinical_medicine": "临床医学",
    "college_chemistry": "大学化学", "college_economics": "大学经济学", "college_physics": "大学物理",
    "college_programming": "大学编程", "computer_architecture": "计算机组成", "computer_network": "计算机网络",
    "discrete_mathematics": "离散数学", "education_science": "教育学", "electrical_engineer": "注册电气工程师",
    "environmental_impact_assessment_engineer": "环境影响评价工程师", "fire_engineer": "注册消防工程师",
    "high_school_biology": "高中生物", "high_school_chemistry": "高中化学", "high_school_chinese": "高中语文",
    "high_school_geography": "高中地理", "high_school_history": "高中历史", "high_school_mathematics": "高中数学",
    "high_school_physics": "高中物理", "high_school_politics": "高中政治",
    "ideological_and_moral_cultivation": "思想道德修养与法律基础", "law": "法学",
    "legal_professional": "法律职业资格", "logic": "逻辑学",
    "mao_zedong_thought": "毛泽东思想和中国特色社会主义理论体系概论", "marxism": "马克思主义基本原理",
    "metrology_engineer": "注册计量师", "middle_school_biology": "初中生物", "middle_school_chemistry": "初中化学",
    "middle_school_geography": "初中地理", "middle_school_history": "初中历史",
    "middle_school_mathematics": "初中数学", "middle_school_physics": "初中物理",
    "middle_school_politics": "初中政治", "modern_chinese_history": "近代史纲要", "operating_system": "操作系统",
    "physician": "医师资格", "plant_protection": "植物保护", "probability_and_statistics": "概率统计",
    "professional_tour_guide": "导游资格", "sports_science": "体育学", "tax_accountant": "税务师",
    "teacher_qualification": "教师资格", "urban_and_rural_planner": "注册城乡规划师",
    "veterinary_medicine": "兽医学",
}  # fmt: skip
