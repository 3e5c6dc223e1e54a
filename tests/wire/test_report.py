"""What a client says of itself (K8): what decodes is bounded, and what is shown cannot harm a terminal."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psyche.errors import WireError
from psyche.wire import backend as wire
from psyche.wire.report import (
    MAX_ERROR_BYTES,
    MAX_NAME_BYTES,
    MAX_PHASE_BYTES,
    MAX_WAIT_BYTES,
    SelfReport,
    clean_report,
    clean_text,
)

PLAIN = ["ada", "training", "", 1, 2, 3, 4.5, 6.0, ""]


@given(st.text(max_size=200), st.integers(1, 100))
def test_a_shown_text_is_one_short_printable_line(text: str, max_bytes: int) -> None:
    shown = clean_text(text, max_bytes)
    assert len(shown.encode()) <= max_bytes
    assert shown.isprintable()
    assert shown == shown.strip()
    assert clean_text(shown, max_bytes) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no such file\r\nTraceback:\n\tline 1", "no such file Traceback: line 1"),
        ("\x1b]0;owned\x07\x1b[2J", "]0;owned [2J"),
        ("a\u202egnp.exe\u2028b\x00c", "a gnp.exe b c"),
        ("Größe 日本", "Größe 日本"),
        ("aé", "aé"),
    ],
)
def test_controls_become_blanks(text: str, shown: str) -> None:
    assert clean_text(text, 100) == shown


def test_a_text_is_never_cut_inside_a_character() -> None:
    assert clean_text("aéé", 4) == "aé"


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (0, "n" * (MAX_NAME_BYTES + 1)),
        (1, "p" * (MAX_PHASE_BYTES + 1)),
        (2, "w" * (MAX_WAIT_BYTES + 1)),
        (3, -1),
        (5, 1 << 32),
        (7, float("nan")),
        (7, float("inf")),
        (7, -1.0),
        (8, "e" * (MAX_ERROR_BYTES + 1)),
    ],
)
def test_a_report_out_of_range_is_refused(place: int, value: Any) -> None:
    fields = [*PLAIN]
    fields[place] = value
    with pytest.raises(WireError, match=rf"\[1\]\[{place}\]"):
        wire.decode_backend_request(msgspec.msgpack.encode([1, ["report", fields]]))


@given(st.builds(SelfReport, *[st.text(max_size=600)] * 3, error=st.text(max_size=2_000)))
def test_a_cleaned_report_is_accepted_whatever_its_texts_were(report: SelfReport) -> None:
    request = wire.Request(1, wire.ReportRequest(clean_report(report)))
    raw = wire.encode_message(request)
    assert wire.decode_backend_request(raw) == request
    assert len(raw) <= 1_000
