"""The table of message kinds: journals, requests and instructions on a chain hold its numbers."""

from typing import Annotated, Any, get_args, get_origin, get_type_hints

from psyche.core.rules.apply import BY_TYPE, KINDS, Sender

# A new message takes the next free number, and none is ever used again.
NUMBERS = {
    1: "tick", 2: "join", 3: "leave", 4: "withdraw", 5: "warmup_witness", 6: "witness", 7: "health_check",
    8: "checkpoint", 9: "report_equivocation", 10: "pause", 11: "resume", 12: "recover", 13: "reclaim_slot",
    14: "set_rates", 15: "collect", 16: "update", 17: "update_client_version",
}  # fmt: skip


def test_numbers_and_names_of_message_kinds_never_change() -> None:
    assert [(kind.number, kind.name) for kind in KINDS] == list(NUMBERS.items())


def test_whoever_reports_an_equivocation_is_asked_for_evidence_not_for_a_key() -> None:
    asked = {kind.name for kind in KINDS if kind.sender is Sender.ANYBODY_WITH_EVIDENCE}
    assert asked == {"report_equivocation"}


def test_each_type_of_message_has_one_kind() -> None:
    assert list(BY_TYPE.values()) == list(KINDS)


# The least and the most of each field that has bounds, then those of its entries; sizes for bytes, texts and lists.
BOUNDS = {
    "tick.entropy": [(32, 32)],
    "join.p2p": [(32, 32)],
    "join.expires_unix": [(0, None)],
    "withdraw.epoch": [(0, 65_535)],
    "withdraw.member": [(0, 255)],
    "warmup_witness.epoch": [(0, 65_535)],
    "warmup_witness.member": [(0, 255)],
    "warmup_witness.digest": [(32, 32)],
    "witness.epoch": [(0, 65_535)],
    "witness.height": [(0, 4_294_967_295)],
    "witness.member": [(0, 65_535)],
    "witness.at_s": [(0, 4_294_967_295)],
    "witness.held": [(0, 2**256 - 1)],
    "witness.heard": [(0, 2**256 - 1)],
    "witness.missing": [(0, 2**256 - 1)],
    "witness.broadcast_bloom": [(320, 320)],
    "witness.results_root": [(32, 32)],
    "witness.state_digest": [(32, 32)],
    "witness.metadata": [(0, 256)],
    "health_check.epoch": [(0, 65_535)],
    "health_check.height": [(0, 4_294_967_295)],
    "health_check.member": [(0, 255)],
    "checkpoint.epoch": [(0, 65_535)],
    "checkpoint.digest": [(32, 32)],
    "report_equivocation.epoch": [(0, 65_535)],
    "report_equivocation.height": [(0, 4_294_967_295)],
    "report_equivocation.member": [(0, 255)],
    "recover.gap_s": [(0, None)],
    "recover.reconnect_s": [(0, None)],
    "set_rates.earning": [(0, None)],
    "set_rates.slashing": [(0, None)],
    "collect.claims": [(1, 64), (32, 32), (1, None)],
    "update.bootstrap": [(0, 4), (0, 128)],
    "update.first_weights": [(32, 32)],
    "update.nonce": [(0, None)],
    "update_client_version.version": [(0, 96)],
}


def find_bounds(hint: Any) -> list[tuple[Any, ...]]:
    inner = [bound for argument in get_args(hint) for bound in find_bounds(argument)]
    return [*map(tuple, hint.__metadata__), *inner] if get_origin(hint) is Annotated else inner


def test_the_bounds_of_messages_are_those_that_every_backend_enforces() -> None:
    hints = {
        f"{kind.name}.{name}": hint
        for kind in KINDS
        for name, hint in get_type_hints(kind.type, include_extras=True).items()
    }
    assert {name: bounds for name, hint in hints.items() if (bounds := find_bounds(hint))} == BOUNDS
