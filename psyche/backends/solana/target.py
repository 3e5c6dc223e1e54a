"""A run on Solana, as a target."""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from solders.keypair import Keypair

from psyche.backends.kinds import CHAIN
from psyche.backends.port import Backend, Checked, Fitted, Person, TargetOptions, write_options
from psyche.backends.solana.amounts import MAX_PRIORITY_LAMPORTS
from psyche.backends.solana.cluster import Endpoint, find_endpoints, name_foreign
from psyche.backends.solana.interface.addresses import parse_key, use_program_ids
from psyche.backends.solana.owner.administration import SolanaAdministration, find_administration
from psyche.backends.solana.programs.vouching import choose_programs, read_program_ids
from psyche.backends.solana.rpc.client import open_rpc
from psyche.backends.solana.rpc.transaction import FeePolicy
from psyche.backends.solana.session import ChainSession, CommandWriter, Quote
from psyche.backends.solana.wallet import find_wallet
from psyche.telemetry.sink import EventSink
from psyche.wire.crypto import Identity

if TYPE_CHECKING:
    from psyche.backends.solana.member.entry import Entry
    from psyche.config.load import LoadedRun

_WALLET: Final = "wallet_private_key_path"
_CHAIN: Final = (
    "rpc", "ws_rpc", "rpc_2", "ws_rpc_2", "rpc_3", "ws_rpc_3", "program_ids", "max_priority_fee"
)  # fmt: skip  # options that lead to a chain


@dataclass(slots=True)
class SolanaTarget:
    """A run on a chain, or a chain alone."""

    options: TargetOptions
    endpoints: tuple[Endpoint, ...] = field(init=False)
    _entry: "Entry | None" = field(default=None, init=False)

    def __post_init__(self) -> None:
        own = self.options
        pairs = ((own.rpc, own.ws_rpc), (own.rpc_2, own.ws_rpc_2), (own.rpc_3, own.ws_rpc_3))
        self.endpoints = find_endpoints([(http or "", ws or "") for http, ws in pairs])
        if own.program_ids is not None:
            read_program_ids(own.program_ids)  # what is wrong with it is told before a chain is asked

    @property
    def run_id(self) -> str:
        return self.options.run_id

    @property
    def shows_members(self) -> bool:
        return True

    @property
    def open_access(self) -> None:
        return None

    def open_wallets(self, person: Person) -> AbstractAsyncContextManager[SolanaAdministration]:
        return self.open_administration(person, as_anybody=True)

    @property
    def writer(self) -> CommandWriter:
        """Writes further commands for this chain; what the environment says need not be written."""
        return CommandWriter(
            " ".join(write_options(self.options, _CHAIN)), " ".join(write_options(self.options, (_WALLET,)))
        )

    def write_command(self, command: str, *, signed: bool = True) -> str:
        return f"`{self.writer.write(command, self.run_id, signed=signed)}`"

    def fit(self, file: "LoadedRun") -> Fitted:
        run_id = self.run_id or file.run_id  # many runs can have the settings of one file
        file = replace(CHAIN.fit_file(file), run_id=run_id)
        return Fitted(SolanaTarget(replace(self.options, run_id=run_id)), file)

    @property
    def fees(self) -> FeePolicy:
        most = self.options.max_priority_fee
        return FeePolicy(max_lamports=MAX_PRIORITY_LAMPORTS if most is None else most)

    async def check(self) -> Checked:
        from psyche.backends.solana.member.entry import find_entry

        wallet, named = find_wallet(self.options.wallet_private_key_path), self.options.authorizer
        authorizer = parse_key(named, "--authorizer") if named else None
        async with self._open_chain(wallet.key) as session:
            entry = self._entry = await find_entry(session, self.run_id, authorizer)
        return Checked(tuple(filter(None, (wallet.note, entry.programs))), entry.notes)

    def open_member(
        self, identity: Identity, data_dir: Path, sink: EventSink
    ) -> "AbstractAsyncContextManager[Backend]":
        from psyche.backends.solana.member.entry import open_entered

        assert self._entry is not None, "check first"
        return open_entered(self._entry, self.endpoints, self.fees, identity, data_dir, sink)

    @asynccontextmanager
    async def _open_chain(self, wallet: Keypair | None, person: Person | None = None) -> AsyncGenerator[ChainSession]:
        """Open the chain with a wallet, or without one for who only reads; `person` pays what the wallet pays."""
        async with open_rpc(self.endpoints) as rpc:
            genesis = await rpc.get_genesis_hash()
            vouching = choose_programs(genesis, self.options.program_ids)
            use_program_ids(vouching.ids)
            foreign = "" if wallet is None else name_foreign(genesis, self.endpoints)

            def approve(quote: Quote) -> None:
                if person is None:
                    return
                person.say((f"on {foreign}: " if foreign else "") + quote.describe())
                if foreign:
                    person.confirm("Do it?", f"spend on {foreign}")

            say = (lambda _text: None) if person is None else person.say
            yield ChainSession(rpc, wallet, approve, say, self.writer, vouching, self.fees)

    @asynccontextmanager
    async def open_session(self, person: Person, *, reads: bool) -> AsyncGenerator[ChainSession]:
        """Open the chain with the wallet, or without one if the person only `reads`."""
        wallet = None if reads else find_wallet(self.options.wallet_private_key_path)
        if wallet is not None and wallet.note:
            person.say(f"note: {wallet.note}")
        async with self._open_chain(wallet and wallet.key, person) as session:
            yield session

    @asynccontextmanager
    async def open_administration(
        self, person: Person, *, as_anybody: bool = False
    ) -> AsyncGenerator[SolanaAdministration]:
        async with self.open_session(person, reads=as_anybody) as session:
            yield await find_administration(session, self.run_id, self.options.treasurer_index)
