"""What certified weights write: a prompt that they go on with, in as many calls as it takes."""

from collections.abc import Awaitable, Callable, Sequence

from psyche.client.runtime.evals.exam import Reader
from psyche.evals.ledger import Worker
from psyche.evals.texts import MAX_TOKENS, TEXTS, WrittenText, choose_prompt, cut_text
from psyche.wire.crypto import Identity

Ask = Callable[[Sequence[int], int], Awaitable[Sequence[int] | None]]  # what comes after ids, and how much of it


async def write(reader: Reader, digest: bytes, ask: Ask) -> str | None:
    """Go on with the prompt of these weights, as far as the model reads; None: they are not here any more."""
    prompt = reader.tokenize(choose_prompt(digest))
    prompt = prompt[-int(min(len(prompt), max(1, reader.positions / 2))) :]
    wanted, written = min(MAX_TOKENS, reader.positions - len(prompt)), list[int]()
    while len(written) < wanted and reader.end not in written:
        found = await ask([*prompt, *written], int(wanted) - len(written))
        if found is None:
            return None
        written += found
    if reader.end in written:
        written = written[: written.index(reader.end)]
    return cut_text(reader.decode(written))


def make_text(identity: Identity, run_uid: bytes, worker: Worker, digest: bytes, text: str) -> WrittenText:
    made = WrittenText(run_uid=run_uid, digest=digest, epoch=worker.epoch, member=worker.member, text=text)
    return TEXTS.sign(identity, made)
