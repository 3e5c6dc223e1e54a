"""What an owner reads when a command is refused: what to do, no state by its name in the code, no number of a rule."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psyche.backends.port import TargetOptions
from psyche.backends.tcp.target import ServerTarget
from psyche.cli.helpers.refusals import call_in_words, explain_refusal
from psyche.core.state import errors
from psyche.core.state.state import RunState
from psyche.errors import BackendError
from psyche.wire.backend import RunStatus

STATUS = RunStatus(
    run_id="a-run", run_uid=bytes(32), program="psyche", now_unix=100, nonce=1, run_state=int(RunState.PAUSED),
    state_start_unix=98, pending_pause=False, epoch=3, height=5, step=7, total_steps=90, healthy=2, members=2,
    waiting=0, min_clients=1, init_min_clients=1, connections=2,
)  # fmt: skip
NO_SETTINGS = msgspec.structs.replace(STATUS, run_state=int(RunState.UNINITIALIZED), total_steps=0)
RESUME = errors.CannotResume("the run is ROUND_TRAIN; only a paused one can be resumed")
CHANGED = errors.CannotUpdate("the record is at nonce 8, and the update was made from 7", "P9")
UPDATE = errors.CannotUpdate("the run is WARMUP: config can change only while it is paused or new", "P9")


def stand(state: RunState, *, pending_pause: bool = False) -> RunStatus:
    return msgspec.structs.replace(STATUS, run_state=int(state), pending_pause=pending_pause)


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (RESUME, stand(RunState.ROUND_TRAIN, pending_pause=True), "wait for it (`psyche run info --watch`"),
        (RESUME, stand(RunState.COOLDOWN, pending_pause=True), "at the end of this epoch"),
        (RESUME, stand(RunState.ROUND_WITNESS), "it is training, and there is nothing to resume"),
        (RESUME, stand(RunState.WAITING_FOR_MEMBERS), "it is waiting for members, and there is nothing to resume"),
        (RESUME, stand(RunState.FINISHED), "docs/owner.md"),
        (RESUME, stand(RunState.PAUSED), "run this command again"),
        (errors.Halted("the run is PAUSED already"), stand(RunState.PAUSED), "`psyche run resume`"),
        (errors.Halted("the run is FINISHED already"), stand(RunState.FINISHED), "nothing to pause"),
        (errors.Halted("the run is UNINITIALIZED already"), stand(RunState.UNINITIALIZED), "not started"),
        (errors.ConfigRefused("nine rules"), NO_SETTINGS, "`psyche run create --state FOLDER` completes it"),
        (UPDATE, stand(RunState.WARMUP), "Pause it with `psyche run pause`"),
        (UPDATE, stand(RunState.ROUND_TRAIN, pending_pause=True), "then run this command again"),
        (CHANGED, stand(RunState.PAUSED), "the record has changed since it was read"),
        (errors.ConfigRefused("config.min_clients: must be 1 to 5", "M3, layout"), STATUS, "must be 1 to 5"),
    ],
)
def test_a_refusal_says_in_words_why_and_what_to_do(
    error: errors.CoordinatorError, status: RunStatus, said: str
) -> None:
    text = explain_refusal(error, status)
    assert said in text
    assert_plain(text)


def assert_plain(text: str) -> None:
    assert not any(state.name in text for state in RunState)
    assert not re.search(r"\([A-Z]\d", text)


@given(
    kind=st.sampled_from(sorted(errors.REFUSALS.values(), key=lambda kind: kind.__name__)),
    at=st.sampled_from(list(RunState)),
    named=st.sampled_from(list(RunState)),
    pending=st.booleans(),
)
def test_no_refusal_shows_the_name_of_a_state_or_a_rule(
    kind: type[errors.CoordinatorError], at: RunState, named: RunState, pending: bool
) -> None:
    assert_plain(explain_refusal(kind(f"the run is {named.name}", "P4, T2"), stand(at, pending_pause=pending)))


def test_the_commands_of_a_refusal_name_the_server_and_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVER_KEY", "ab" * 32)
    options = TargetOptions(server_addr="127.0.0.1:1", server_key="ab" * 32, state_dir=Path("my server"))
    write = ServerTarget(options).write_command
    paused = explain_refusal(errors.Halted("the run is PAUSED already"), STATUS, write)
    assert "`psyche run resume --server-addr 127.0.0.1:1 --state-dir 'my server'` lets it go on" in paused
    new = explain_refusal(errors.Halted("the run is UNINITIALIZED already"), stand(RunState.UNINITIALIZED), write)
    assert new.startswith("the run is not started yet; `psyche run resume --server-addr 127.0.0.1:1 ")
    going = explain_refusal(UPDATE, stand(RunState.WARMUP), write)
    assert "(`psyche run info --watch --server-addr 127.0.0.1:1` shows" in going


async def test_a_server_that_ends_after_it_refused_leaves_the_reason() -> None:
    class Gone:
        async def get_status(self) -> RunStatus:
            raise BackendError("gone")

    async def refuse(_backend: Any) -> None:
        raise UPDATE

    backend: Any = Gone()
    with pytest.raises(
        BackendError, match=r"^the run is warming up: config can change only while it is paused or new$"
    ):
        await call_in_words(refuse, backend)
