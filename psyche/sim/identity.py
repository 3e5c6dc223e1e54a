"""The keys of simulated machines."""

from psyche.wire.crypto import Identity, blake3_hash


class SimIdentity(Identity):
    """A key that remembers what it signed, over all lives of its machine."""

    def __init__(self, seed: bytes) -> None:
        super().__init__(seed)
        self.signed: set[bytes] = set()

    def sign(self, message: bytes) -> bytes:
        signature = super().sign(message)
        self.signed.add(message + signature)
        return signature


def build_machine_identity(seed: int, name: str) -> SimIdentity:
    return SimIdentity(blake3_hash(f"psyche/simulator {seed} {name}".encode()))
