"""Raw multistream-select: the names of protocols that two nodes exchange before a connection is encrypted."""

from kits.middle import Change

HEADER = b"/multistream/1.0.0\n"
NOISE = b"/noise\n"
PLAINTEXT = b"/plaintext/2.0.0\n"
REFUSED = b"na\n"
INSECURE = (PLAINTEXT, b"/plaintext/1.0.0\n", b"/secio/1.0.0\n")


def encode(message: bytes) -> bytes:
    """A message of multistream-select: its length as one byte of varint, then the message."""
    assert len(message) < 128
    return bytes([len(message)]) + message


def split(data: bytes) -> tuple[list[bytes], bytes]:
    """The whole messages at the front of `data`, and the rest."""
    messages: list[bytes] = []
    while data and len(data) > data[0]:
        messages.append(data[1 : 1 + data[0]])
        data = data[1 + data[0] :]
    return messages, data


def replace_names(old: bytes, new: bytes) -> Change:
    """Rewrite a message of the negotiation, its length included."""
    return lambda data: data.replace(encode(old), encode(new))
