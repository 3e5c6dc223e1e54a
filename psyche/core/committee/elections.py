"""A round's quorum, roles and witnesses (`docs/protocol-reference.md` 2.5 and 3.3).

Elections run over ranks. A member's rank is the number of set bits below its own in the round's `members`, or
in its `electors` for the election of witnesses (M10). Rank and index are equal while nobody has left and nobody
is on probation. These functions never fail: they clamp numbers that a checked configuration cannot hold, because
a tick must never fail (T2).
"""

import hashlib
from collections.abc import Iterable
from typing import Final

from psyche.core.committee.shuffle import compute_order
from psyche.core.state.bits import get_members
from psyche.core.state.enums import Role
from psyche.core.state.limits import MAX_AUDITS, MAX_WITNESSES
from psyche.core.state.state import Config, Round

COMMITTEE_SALT: Final = b"committee"
WITNESS_SALT: Final = b"witness"
UPLOAD_SALT: Final = b"upload"
MAX_UPLOADS: Final = 16


def compute_quorum(n: int) -> int:
    """q(n): the number of the `n` elected witnesses that must agree.

    2q > n always holds, so two different sets cannot both win. q(0) is 1, so an empty set is never a quorum.
    """
    return min(n, 2) if 0 < n < 4 else 2 * n // 3 + 1


def compute_liar_bound(n: int) -> int:
    """f(n): the number of lying witnesses, out of `n` elected, that the decision tolerates (C2, C3, W6)."""
    return max(0, n - 1) // 3


def compute_witnesses_expected(witness_nodes: int, electors: int) -> int:
    """n, the number of witnesses of a round with this many electors; `witness_nodes` 0 elects everybody, up to 32."""
    return min(witness_nodes or MAX_WITNESSES, electors, MAX_WITNESSES)


def compute_election_seed(random_seed: int, salt: bytes) -> bytes:
    """The 32-byte seed of one election: SHA-256(SHA-256(LE_u64(seed)) | salt); `salt` names the election."""
    inner = hashlib.sha256(random_seed.to_bytes(8, "little")).digest()
    return hashlib.sha256(inner + salt).digest()


def _compute_member_order(candidates: int, random_seed: int, salt: bytes) -> list[int]:
    """The members of a bitmap in the order that the election named by `salt` gives them."""
    ranks = get_members(candidates)  # element r is the member of rank r
    order = compute_order(len(ranks), compute_election_seed(random_seed, salt))
    return [ranks[rank] for rank in order]


def order_uploaders(keys: Iterable[bytes], digest: bytes) -> list[bytes]:
    """The members that can upload weights, by key, in the order of their turns for the weights of this digest (S10)."""
    known = sorted(keys)
    seed = compute_election_seed(int.from_bytes(digest[:8], "little"), UPLOAD_SALT)
    return [known[rank] for rank in compute_order(len(known), seed)]


def compute_uploads(able: int) -> int:
    """How many of the members that can are to upload an epoch's weights (S10)."""
    return max(1, min(able // 3, MAX_UPLOADS))


def compute_verifiers_expected(round_: Round, config: Config) -> int:
    """floor((m * verification_percent + u) / 100), at most 32, and always a member fewer than the round has (V7).

    u is the seed modulo 100: without it, no round of fewer than 100 / percent members would ever have a verifier.
    """
    members, chance = round_.members.bit_count(), round_.random_seed % 100
    return max(0, min((members * config.verification_percent + chance) // 100, MAX_AUDITS, members - 1))


def get_verifiers(round_: Round, config: Config) -> list[int]:
    """The members that verify in the round instead of training, in election order (V7)."""
    expected = compute_verifiers_expected(round_, config)
    return _compute_member_order(round_.members, round_.random_seed, COMMITTEE_SALT)[:expected] if expected else []


def get_roles(round_: Round, config: Config) -> dict[int, Role]:
    """The role of every member of the round, in order of members."""
    roles = dict.fromkeys(get_members(round_.members), Role.TRAINER)
    return roles | dict.fromkeys(get_verifiers(round_, config), Role.VERIFIER)


def is_witness(round_: Round, member: int) -> bool:
    """Whether the member is an elected witness of the round; false for a member outside the round."""
    return member in get_witnesses(round_)


def get_witnesses(round_: Round) -> list[int]:
    """The round's `witnesses_expected` elected witnesses, in election order.

    They are elected among the electors (M10), independently of roles: a witness also trains or verifies.
    """
    return _compute_member_order(round_.electors, round_.random_seed, WITNESS_SALT)[: round_.witnesses_expected]
