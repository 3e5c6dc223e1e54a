"""The options that say where a run is and who acts there: commands share them, and get what they say as `Access`."""

import inspect
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from psyche.backends.solana.amounts import MAX_PRIORITY_LAMPORTS
from psyche.cli.helpers.common import confirm, format_examples, run_async, say
from psyche.cli.helpers.options import Shared, build, share
from psyche.errors import BackendError, ConfigError

if TYPE_CHECKING:
    from psyche.backends.port import AccessAdministration, Administration, Person, Target, TargetOptions
    from psyche.backends.solana.session import ChainPlan, ChainSession
    from psyche.backends.solana.target import SolanaTarget
    from psyche.wire.backend import AnyMessage, RunStatus

_Found = TypeVar("_Found")
_Part = TypeVar("_Part", bound="Administration")
_Session = TypeVar("_Session")

# In examples.
ADDRESS: Final = "--server-addr 127.0.0.1:19400"
OWNED: Final = f"{ADDRESS} --state-dir server"
LOCAL: Final = "--rpc localhost"
ON_CHAIN: Final = f"--run-id my-run {LOCAL}"
WALLET: Final = "4vJ9JU1bJJE96FWSJKvHsmmFADCg4gpZQff4P3bkLKi"


def _check_address(text: str | None) -> str | None:
    # While options are read: a command that made folders or a key first would leave them behind.
    if text:
        from psyche.backends.tcp.dial import parse_server

        parse_server(text)
    return text or None


def _share_endpoint(number: int, which: str) -> Shared:
    return share(f"rpc_{number}", str | None, f"A {which} endpoint of the same chain.") | share(
        f"ws_rpc_{number}", str | None, "Its address for subscriptions."
    )


_SERVER: Final = share(
    "server_addr", str | None, "For a run on a server: the coordinator server, host:port.", callback=_check_address
)
CHAIN: Final = (
    share(
        "rpc", str | None,
        "For a run on Solana: an RPC endpoint, http(s)://HOST, or localhost, devnet, testnet, mainnet-beta.",
    )
    | share(
        "ws_rpc", str | None, "Its address for subscriptions, ws(s)://HOST. Default: the next port of the same host."
    )
    | _share_endpoint(2, "second")
    | _share_endpoint(3, "third")
    | share(
        "program_ids", Path | None,
        "File of the ids of Psyche's programs on this chain, which the run's owner gives to members, and `psyche dev "
        "deploy` writes. Default: what this version knows of the chain.",
        envvar="PSYCHE_PROGRAM_IDS",
    )
)  # fmt: skip
WALLET_PATH: Final = share(
    "wallet_private_key_path", Path | None,
    "File with the wallet that signs and pays, as `solana-keygen new` writes it. RAW_WALLET_PRIVATE_KEY may hold the "
    "key instead, and wins. Default: ANCHOR_WALLET, then the Solana CLI's wallet.",
    "--wallet-private-key-path", "-w",
)  # fmt: skip
_PAYING: Final = WALLET_PATH | share(
    "max_priority_fee", int | None,
    "The most that a transaction on Solana pays beside its signatures, to be early while the chain is busy: what "
    f"others lately paid, up to this. 0: nothing. Default: {MAX_PRIORITY_LAMPORTS:,}.",
    min=0, metavar="LAMPORTS",
)  # fmt: skip
_YES: Final = share(
    "yes", bool, "Make the change without a question; needed where no terminal is.", "--yes", "-y", default=False,
    envvar=None,
)  # fmt: skip
CHAIN_AND_WALLET: Final = CHAIN | _PAYING | _YES
JOINING: Final = (
    _SERVER
    | share(
        "server_key", str | None,
        "The server's public key, 64 hex digits: any other server is refused. Default: the first server that answers "
        "is trusted.",
    )
    | CHAIN
    | _PAYING
    | share(
        "authorizer", str | None,
        "For a run on Solana: the wallet whose authorization lets yours join, which is its delegate. Default: your "
        "wallet's own, or the one for everybody.",
    )
)  # fmt: skip
# In the order of the help: where the run is, the key, and last what few people set.
OWNING: Final = (
    _SERVER
    | {"rpc": CHAIN["rpc"]}
    | share("run_id", str, "The run. A server has only one, a chain has many.", "--run-id", "-r", default="")
    | share(
        "server_key", str | None,
        "The server's public key, 64 hex digits, unless --state-dir holds it; any other server is refused.",
    )
    | share(
        "identity_secret_key_path", Path | None, "File with an owner's secret key, if it is not the server's.",
        "--identity-secret-key-path", "-i",
    )
    | share(
        "state_dir", Path | None, "The server's state folder, which holds its key.", "--state-dir", "--save-state-dir"
    )
    | WALLET_PATH
    | share("timeout", float, "Seconds to try a server that does not answer.", default=10.0, envvar=None, min=0.1)
    | CHAIN_AND_WALLET
    | share(
        "treasurer_index", int | None,
        "The run's index at the treasurer, which is found without it; checked.", envvar=None, min=0, hidden=True,
    )
)  # fmt: skip
_FINDS: Final = {"server_addr", "run_id", "server_key", *CHAIN}
# To read the record.
FINDING: Final = {name: one for name, one in (OWNING | JOINING).items() if name in _FINDS} | share(
    "identity_secret_key_path", Path | None, "File with your key, for a server that answers only keys that its owner "
    "allows.", "--identity-secret-key-path", "-i",
)  # fmt: skip
RunId = Annotated[
    str, typer.Option("--run-id", "-r", envvar="RUN_ID", help="The run. A server has only one, a chain has many.")
]


@dataclass(frozen=True)
class Access:
    """What the shared options of a command say: where a run or a chain is, and who acts there."""

    options: "TargetOptions"
    yes: bool = False
    reads: bool = False  # changes nothing, and needs no wallet

    @cached_property
    def target(self) -> "Target":
        from psyche.backends.target import parse_target

        return parse_target(self.options)

    @cached_property
    def chain(self) -> "SolanaTarget":
        from psyche.backends.target import parse_chain

        return parse_chain(self.options)

    def _make_person(self, *, sees_waits: bool = False) -> "Person":
        from psyche.backends.port import Person

        return Person(say, partial(confirm, yes=self.yes), sees_waits)

    def run(
        self, function: "Callable[[Administration], Awaitable[_Found]]", *, as_anybody: bool = False,
        sees_waits: bool = False, run: Callable[..., Any] = run_async,
    ) -> _Found:  # fmt: skip
        """Call an async function with the run; `as_anybody` needs no key where none is named, `run` is what runs it."""
        person = self._make_person(sees_waits=sees_waits)
        return self._call(function, self.target.open_administration(person, as_anybody=as_anybody), run)

    def command(self, message: "AnyMessage") -> "RunStatus":
        return self.run(lambda backend: backend.command(message))

    def run_with_list(self, function: "Callable[[AccessAdministration], Awaitable[_Found]]", instead: str) -> _Found:
        """Call an async function with a run that keeps a list of who may join; `instead` is what to do elsewhere."""
        if self.target.open_access is None:
            raise ConfigError(f"this command is for a run on a server; on a chain use {instead}")
        return self._call(function, self.target.open_access(self._make_person()))

    def describe_wallet(self, address: str) -> dict[str, Any]:
        if self.target.open_wallets is None:
            raise ConfigError(
                "--address: is for a run on Solana; `psyche run info` with an owner's key shows all clients"
            )
        opening = self.target.open_wallets(self._make_person())
        return self._call(lambda backend: backend.describe_wallet(address), opening)

    def _call(
        self, function: "Callable[[_Part], Awaitable[_Found]]", opening: "AbstractAsyncContextManager[_Part]",
        run: Callable[..., Any] = run_async,
    ) -> _Found:  # fmt: skip
        from psyche.cli.helpers.refusals import call_in_words

        return _run_in(opening, lambda backend: call_in_words(function, backend, self.target.write_command), run)

    def run_on_chain(self, function: "Callable[[ChainSession], Awaitable[_Found]]") -> _Found:
        return _run_in(self.chain.open_session(self._make_person(), reads=self.reads), function)

    def carry_out(self, plan: "Callable[[ChainSession], Awaitable[ChainPlan]]", done: str, nothing: str = "") -> None:
        """Carry out a plan on the chain, and say that it is done, or `nothing` if there was nothing to do."""

        async def do(session: "ChainSession") -> None:
            await carry_out(session, await plan(session), done, nothing)

        self.run_on_chain(do)


def _run_in(
    opening: AbstractAsyncContextManager[_Session], function: Callable[[_Session], Awaitable[_Found]],
    run: Callable[..., Any] = run_async,
) -> _Found:  # fmt: skip
    async def call() -> _Found:
        async with opening as opened:
            return await function(opened)

    return run(call)


def command(
    group: typer.Typer,
    name: str,
    *examples: str,
    shared: Shared = OWNING,
    aliases: tuple[tuple[typer.Typer, str], ...] = (),
    hidden: bool = False,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Turn a function into a command that has the `shared` options beside its own.

    They stand in the place of the function's arguments that are records, and it gets these made of them: `Access`, or
    a record of settings, whose fields have the options' names. An option that the function declares itself counts
    instead of the shared one of its name. `aliases` are further names, by group, which help does not show.
    """

    def register(function: Callable[..., None]) -> Callable[..., None]:
        own = dict(inspect.signature(function).parameters)
        records = {name: one.annotation for name, one in own.items() if is_dataclass(one.annotation)}
        settings: dict[str, Any] = {name: kind for name, kind in records.items() if kind is not Access}

        def run(**given: Any) -> None:  # typer reads the signature that is set below
            from psyche.backends.port import TargetOptions

            # Names are fields of several records at times, such as run_id of settings and of the target: each gets it.
            made = {name: build(kind, given) for name, kind in settings.items()}
            if "access" in own:
                made["access"] = Access(build(TargetOptions, given), given.get("yes", False), shared is CHAIN)
            function(**made, **{name: value for name, value in given.items() if name in own})

        left = {name: one for name, one in shared.items() if name not in own}
        of_settings = {field.name for kind in settings.values() for field in fields(kind)}
        parameters: list[inspect.Parameter] = []
        for one in own.values():
            if one.name not in records:
                parameters.append(one)
                continue
            names = {field.name for field in fields(one.annotation)} if one.name in settings else {*left} - of_settings
            parameters += [left.pop(name) for name in [*left] if name in names]
        run.__doc__ = function.__doc__
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        epilog = format_examples(*examples)
        group.command(name, hidden=hidden, epilog=epilog)(run)
        for other, alias in aliases:
            other.command(alias, hidden=True, epilog=epilog)(run)
        return function

    return register


async def tell_return(session: "ChainSession", before: int) -> None:
    from psyche.backends.solana.amounts import format_sol

    after = await session.rpc.get_balance(session.key)
    typer.echo(f"{format_sol(max(0, after - before))} came back to {session.key}")


async def carry_out(session: "ChainSession", plan: "ChainPlan", done: str, nothing: str) -> None:
    """Carry out a plan and say what happened and that it is done, or `nothing` if there was nothing to do."""
    from psyche.cli.helpers.refusals import put_in_words
    from psyche.core.state.errors import CoordinatorError

    try:
        landed = await session.carry_out(plan)
    except CoordinatorError as error:
        raise BackendError(put_in_words(error)) from error
    if landed is None:
        typer.echo(nothing)
    else:
        for event in landed.events:
            typer.echo(str(event))
        for line in plan.outcome:
            typer.echo(line)
        typer.echo(f"{done} (transaction {landed.signature})")
