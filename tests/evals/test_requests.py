"""Where a text is cut between context and choice, and which choice a metric takes."""

import pytest

from psyche.evals.documents import Document
from psyche.evals.requests import (
    Request,
    Score,
    choose,
    compute_standard_error,
    encode_request,
    find_written_answer,
)
from psyche.evals.tasks import Metric


def encode(text: str) -> list[int]:
    """Words with the blanks before them, as a tokenizer of pieces has them; 1 is the token at the beginning."""
    words: list[str] = []
    for letter in text:
        if letter == " " or not words:
            words.append("")
        words[-1] += letter
    return [1, *(sum(map(ord, word)) for word in words)]


def test_a_text_is_cut_where_the_tokens_of_the_context_end() -> None:
    found = encode_request(encode, "Why not", ["a b", "c"], None)
    assert found == Request(encode("Why not"), [encode("Why not a b")[3:], encode("Why not c")[3:]])
    assert found.positions == 3 + 2 - 1, "nothing is predicted from the last token"


def test_blanks_at_the_end_of_the_context_belong_to_the_choice() -> None:
    found = encode_request(encode, "Why  ", ["a"], None)
    assert found == Request(encode("Why"), [encode("Why   a")[2:]])


def test_a_context_without_tokens_is_the_prefix() -> None:
    def encode_plainly(text: str) -> list[int]:
        return encode(text)[1:]

    assert encode_request(encode_plainly, "", ["a"], 9) == Request([9], [encode_plainly(" a")])
    assert encode_request(encode_plainly, "", ["a"], None) is None
    assert encode_request(lambda text: encode(text.rstrip()), "Why", ["a", ""], None) is None, "a choice of no token"


def test_each_metric_takes_the_choice_that_is_best_by_its_measure() -> None:
    document = Document("c", ("ab", "abcdef", "ü"), 0)
    scores = [Score(-4.0, False), Score(-6.0, False), Score(-3.0, False)]
    alone = [Score(-9.0, False), Score(-7.0, False), Score(-1.0, False)]
    assert choose(document, scores, alone, Metric.ACC) == 2
    assert choose(document, scores, alone, Metric.ACC_NORM) == 1  # -2, -1, and -1.5 for each of two bytes
    assert choose(document, scores, alone, Metric.ACC_UNCOND) == 0
    assert choose(Document("c", ("", "ab"), 0), scores[:2], alone[:2], Metric.ACC_NORM) == 1


def test_the_last_answer_that_is_named_before_the_next_question_counts() -> None:
    document = Document("c", ("A", "B"), 0)
    assert find_written_answer(document, "the answer is (A), no, the answer is B. Question: the answer is A") == 1
    assert find_written_answer(document, "the answer is (C)") is None
    assert find_written_answer(document, "I do not know") is None


def test_the_standard_error_is_that_of_a_mean() -> None:
    values = [1.0] * 3 + [0.0] * 7
    variance = sum((one - 0.3) ** 2 for one in values) / 9
    assert compute_standard_error(3, 10) == pytest.approx((variance / 10) ** 0.5)
    assert compute_standard_error(5, 5) == 0.0
    assert compute_standard_error(1, 1) is None
    assert compute_standard_error(0, 0) is None
