"""`psyche dev`: what those need who build on a run, or try one out: a chain on this machine."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from psyche.cli.helpers.common import ending_on_sigterm, format_examples, make_group, run_async, say
from psyche.cli.helpers.outputs import check_target
from psyche.cli.helpers.target import CHAIN_AND_WALLET, LOCAL, WALLET, Access, command, tell_return
from psyche.errors import ConfigError
from psyche.localchain.validator import Validator

if TYPE_CHECKING:
    from solders.keypair import Keypair

    from psyche.backends.solana.session import ChainSession
    from psyche.localchain.chain import LocalChain

SOL: Final = 10**9
WALLET_SOL: Final = 1_000
DEV_WALLET: Final = Path("psyche-data") / "dev-wallet.json"
DECIMALS: Final = 6  # of a new token
FILE: Final = "program-ids.toml"
PORT: Final = 8899  # where Solana's own tools expect a chain on this machine

Wallets = Annotated[
    list[Path] | None,
    typer.Option(
        help=f"Wallet to fund, a solana-keygen file; made if it is missing. May be repeated. Default: {DEV_WALLET}"
    ),
]
Ledger = Annotated[
    Path | None,
    typer.Option(help="Folder to keep the chain in. Default: it is in memory alone, and gone after Ctrl-C."),
]
Record = Annotated[
    Path | None, typer.Option(help="File to record runs in, for `psyche dev replay`: about 100 KB a minute.")
]

group = make_group(
    "Tools for those who try out or build on a run on a chain.",
    "psyche dev validator                    # a chain here, until Ctrl-C",
    "psyche dev validator --ledger my-chain  # kept on disk",
)


_command = partial(command, group, shared=CHAIN_AND_WALLET)


@group.command(
    "validator",
    epilog=format_examples(
        "psyche dev validator                         # in memory, at port 8899",
        "psyche dev validator --ledger my-chain       # goes on next time",
        "psyche dev validator --port 0 --slot-ms 100  # at any port, faster",
        "psyche dev validator --record chain.rec      # for `psyche dev replay`",
        "psyche dev validator --wallet owner.json --wallet ada.json",
    ),
)
def run_validator(
    *,
    validator: Annotated[
        Validator, typer.Option(help="embedded: comes with psyche. real: solana-test-validator or surfpool.")
    ] = Validator.embedded,
    port: Annotated[
        int, typer.Option(min=0, max=65534, help="Port for calls; the next one is for subscriptions. 0: any free two.")
    ] = PORT,
    bind_ip: Annotated[str, typer.Option(help="Address to listen on; 127.0.0.1 keeps strangers out.")] = "127.0.0.1",
    slot_ms: Annotated[int, typer.Option(min=10, max=60_000, help="Length of a slot.")] = 400,
    ledger: Ledger = None,
    record: Record = None,
    reset: Annotated[bool, typer.Option("--reset", help="Begin anew; removes the chain in --ledger.")] = False,
    wallet: Wallets = None,
) -> None:
    """Run a chain on this machine, with this project's programs.

    It speaks the JSON-RPC and WebSocket of Solana's servers, and executes programs on Solana's virtual machine. It is
    no validator: nobody votes, processed, confirmed and finalized show the same state, programs can be called in the
    slot that deploys them, and there are no stakes, rewards, epochs, durable nonces or fee market. Try on devnet what
    depends on those. Anybody who reaches the port gets lamports for nothing, so never take its wallets elsewhere.

    --validator real runs solana-test-validator or surfpool instead, with the programs in place. Of the two it takes the
    first that is on the path.

    With --ledger the chain is saved every 5 seconds and at the end. Exits with 130 on Ctrl-C.
    """
    if validator is Validator.real:
        from psyche.localchain.real import find_tool

        find_tool()
        if record is not None:
            raise ConfigError("--record: only the embedded chain can; leave out --validator real")
    if reset and ledger is None:
        raise ConfigError("--reset: there is no --ledger to reset; without one each start begins anew")
    if ledger is not None:
        prepare_ledger(ledger, validator, reset=reset)
    funded = {path: get_or_make_wallet(path) for path in wallet or [DEV_WALLET]}

    async def run_embedded() -> None:
        import trio

        from psyche.localchain.chain import open_local_chain

        async with open_local_chain(slot_ms=slot_ms, host=bind_ip, port=port, state=ledger, record=record) as chain:
            for one in funded.values():
                fund(chain, one)
            kept = "in memory alone" if ledger is None else f"kept in {ledger}"
            typer.echo(f"chain at slot {chain.bank.slot}, a slot every {slot_ms} ms, {kept}; Ctrl-C stops it")
            show(chain.http, chain.ws, str(chain.bank.genesis), funded)
            await trio.sleep_forever()

    async def run_real() -> None:
        import trio

        from psyche.localchain.real import open_real_chain

        typer.echo("starting the validator; its first start takes some seconds")
        async with open_real_chain(slot_ms=slot_ms, host=bind_ip, port=port, state=ledger, reset=reset) as chain:
            for one in funded.values():
                await chain.fund(str(one.pubkey()), WALLET_SOL * SOL)
            typer.echo(f"{chain.tool}, a slot every {slot_ms} ms; Ctrl-C stops it")
            show(chain.http, chain.ws, await chain.call("getGenesisHash"), funded)
            await trio.sleep_forever()

    with ending_on_sigterm():
        run_async(run_real if validator is Validator.real else run_embedded)


def prepare_ledger(ledger: Path, validator: Validator, *, reset: bool) -> None:
    from psyche.localchain.ledger import FILE, open_ledger

    is_ours, is_real = (ledger / FILE).exists(), (ledger / "genesis.bin").exists()
    if is_real if validator is Validator.embedded else is_ours:
        raise ConfigError(f"--ledger {ledger}: holds a chain of another validator; name another folder")
    if reset and is_ours:
        with open_ledger(ledger):  # nobody runs it
            (ledger / FILE).unlink()


def get_or_make_wallet(path: Path) -> "Keypair":
    from solders.keypair import Keypair

    from psyche.backends.solana.wallet import read_wallet, write_wallet

    if not path.exists():
        made = Keypair()
        write_wallet(path, made)
        return made
    return read_wallet(path)


def fund(chain: "LocalChain", wallet: "Keypair") -> None:
    missing = WALLET_SOL * SOL - chain.bank.get_lamports(wallet.pubkey())
    if missing > 0:
        chain.bank.airdrop(wallet.pubkey(), missing)


def show(http: str, ws: str, genesis: str, wallets: dict[Path, "Keypair"]) -> None:
    from psyche.backends.solana.interface.idl import NAMES

    typer.echo(f"  calls          {http}")
    typer.echo(f"  subscriptions  {ws}")
    typer.echo(f"  genesis hash   {genesis}")
    for name, address in NAMES.items():
        typer.echo(f"  {name:<13}  {address}")
    for path, wallet in wallets.items():
        typer.echo(f"  wallet         {path} ({wallet.pubkey()}, {WALLET_SOL:,} SOL)")


@group.command("replay", epilog=format_examples("psyche dev replay chain.rec"))
def replay(*, file: Annotated[Path, typer.Argument(help="What `psyche dev validator --record FILE` wrote.")]) -> None:
    """Check a recorded chain against this version.

    The programs must have done what this version of psyche would do. Its own coordinator, which a server runs too,
    carries out each instruction that took effect on the chain, with the chain's time, slots and hashes. After each
    instruction it must come to the same 165,192 bytes as the run's account had on the chain. Runs with the same
    programs and the same psyche always agree; one that differs is a bug.

    A chain must be recorded while it runs: the transactions that an endpoint keeps do not say which slot hashes the
    programs have drawn their seeds from.

    Exit code 1 at the first difference, which is printed field by field.
    """
    from psyche.localchain.recorder import replay_record

    runs = replay_record(file).get_runs()
    for run in runs:
        calls = ", ".join(f"{name} {count}" for name, count in sorted(run.calls.items()))
        typer.echo(f"run {run.run_id!r}, account {run.account}, nonces {run.first_nonce} to {run.nonce}: {calls}")
    compared, unseen = sum(run.compared for run in runs), sum(run.unseen for run in runs)
    rest = f"; {unseen} ran inside of others, and were compared together with those" if unseen else ""
    typer.echo(f"the accounts equal what core makes of them after each of {compared} instructions{rest}")


@group.command(
    "idl",
    epilog=format_examples(
        "psyche dev idl coordinator", "psyche dev idl coordinator --legacy --output old.json  # for anchorpy"
    ),
)
def idl(
    *,
    program: Annotated[str, typer.Argument(help="coordinator, authorizer or treasurer.")],
    legacy: Annotated[bool, typer.Option("--legacy", help="In the form of before Anchor 0.30.")] = False,
    program_ids: Annotated[Path | None, typer.Option(help="A file of program ids, of one chain: its address.")] = None,
    output: Annotated[Path | None, typer.Option(help="File to write instead of printing.")] = None,
) -> None:
    """Print a program's interface, for tools of Anchor.

    It is Anchor's IDL, spec 0.1.0, with the address of a local chain, or that in --program-ids. The legacy form is for
    tools that cannot read that; it leaves out discriminators, which are the usual ones, and the layout of accounts,
    which have no gaps.
    """
    import json

    from psyche.backends.solana.interface.idl import NAMES, load_idl
    from psyche.backends.solana.programs.vouching import read_program_ids
    from psyche.durable import naming
    from psyche.localchain.legacy_idl import convert_to_legacy

    if program not in NAMES:
        raise ConfigError(f"{program!r} is no program: use one of {', '.join(NAMES)}")
    found = load_idl(program)
    if program_ids is not None:
        clusters = read_program_ids(program_ids)
        if len(clusters) != 1 or program not in clusters[0].programs:
            raise ConfigError(f"--program-ids {program_ids}: must have the programs of one chain here")
        found["address"] = clusters[0].programs[program].address
    text = json.dumps(convert_to_legacy(found) if legacy else found, indent=2)
    if output is None:
        typer.echo(text)
        return
    with naming(output):
        output.write_text(text + "\n", encoding="utf-8")


@_command("airdrop", f"psyche dev airdrop --amount 5 {LOCAL}", f"psyche dev airdrop --to {WALLET} \\", f"    {LOCAL}")
def airdrop(
    *,
    amount: Annotated[str, typer.Option(help="How many SOL. A test cluster gives few at a time.")] = "1",
    to: Annotated[str | None, typer.Option(help="The wallet that gets them. Default: yours.")] = None,
    access: Access,
) -> None:
    """Get SOL that are worth nothing, for a wallet.

    They come from the faucet of a local chain, of devnet or of testnet; mainnet-beta has none.
    """
    from psyche.backends.solana.amounts import SOL_DECIMALS, format_sol, parse_amount
    from psyche.backends.solana.interface.addresses import parse_key
    from psyche.backends.solana.owner.funds import request_lamports

    lamports = parse_amount(amount, SOL_DECIMALS, "--amount")
    if not lamports:
        raise ConfigError("--amount: must be more than 0")
    named = parse_key(to, "--to") if to else None

    async def do(session: "ChainSession") -> None:
        key = named or session.key
        typer.echo(f"{key} has {format_sol(await request_lamports(session.rpc, key, lamports))}")

    replace(access, reads=named is not None).run_on_chain(do)


@_command(
    "mint",
    f"psyche dev mint --amount 1000 {LOCAL}",
    f"psyche dev mint --to {WALLET} \\",
    f"    --decimals 0 --amount 50 {LOCAL}",
)
def mint(
    *,
    amount: Annotated[str | None, typer.Option(help="How many tokens to mint, such as 250.5.")] = None,
    to: Annotated[
        str | None, typer.Option(help="The wallet that gets them, or an account of this token. Default: your wallet.")
    ] = None,
    mint: Annotated[str | None, typer.Option(help="Mint more of this token. Default: a new one is made.")] = None,
    decimals: Annotated[
        int | None, typer.Option(min=0, max=9, help=f"Digits behind the point, of a new token. Default: {DECIMALS}.")
    ] = None,
    access: Access,
) -> None:
    """Make a token that a run can pay its members in, or mint more.

    It is a token of the SPL Token program. Your wallet alone can mint it; nobody can freeze it.
    Prints the token's address alone on standard output, for `psyche run create --treasurer-collateral-mint`.
    """
    from psyche.backends.solana.interface.addresses import parse_key
    from psyche.backends.solana.owner.funds import plan_mint, plan_token

    named, target = (parse_key(text, f"--{name}") if text else None for name, text in (("mint", mint), ("to", to)))
    if named is not None and (amount is None or decimals is not None):
        raise ConfigError("--mint: that token is there; name the --amount to mint of it, and no --decimals")

    async def do(session: "ChainSession") -> None:
        to = target or session.key
        if named is None:
            token, plan = await plan_token(session, DECIMALS if decimals is None else decimals, amount, to)
        else:
            token, plan = named, await plan_mint(session, named, amount or "", to)
        await session.carry_out(plan)
        say("done")
        typer.echo(str(token))

    access.run_on_chain(do)


Cluster = Annotated[str, typer.Option(help="The same as --rpc: devnet, testnet, mainnet-beta, or an address.")]
Keys = Annotated[
    Path, typer.Option(help="Folder of the programs' keys, made on first use. Keep it until nothing is left to do.")
]
Final_ = Annotated[
    bool, typer.Option("--final", help="Let nobody change the programs any more. This cannot be taken back.")
]
NewestFormat = Annotated[
    bool, typer.Option("--sbpf-v3", help="Deploy SBPFv3, where a cluster takes no new programs in SBPFv0 any more.")
]
Close = Annotated[
    bool,
    typer.Option("--close", help="Close the programs, and buffers of a deployment cut off; the deposits come back."),
]


@_command("deploy", f"psyche dev deploy {LOCAL}", f"psyche dev deploy {LOCAL} --sbpf-v3 --final  # for ever")
def deploy(
    *,
    cluster: Cluster = "",
    keys: Keys = Path("psyche-programs"),
    final: Final_ = False,
    sbpf_v3: NewestFormat = False,
    close: Close = False,
    access: Access,
) -> None:
    """Put the coordinator, authorizer and treasurer on a chain.

    They get addresses of your own: the ids in the compiled programs are replaced by those of the keys in --keys, and
    nothing else. The wallet pays, and is their upgrade authority at first. The command says before it begins what that
    costs: about 6.8 SOL of deposit, and fees. If it is cut off, run it again: it goes on where it stopped, and pays
    nothing twice. A newer version of Psyche upgrades the programs in the same way.

    At the end it reads the programs back, compares them with SHA256SUMS, and writes their ids, digests and upgrade
    authority to --program-ids (default: program-ids.toml in --keys). Give this file to the members: with it their
    clients find the programs, and refuse any others.
    """
    from psyche.backends.solana.programs.deployment import load_new_programs

    check_target("--program-ids", access.options.program_ids)
    file = access.options.program_ids or keys / FILE
    # The programs need not be there yet, and so no file of their ids.
    options = replace(access.options, program_ids=None, rpc=cluster or access.options.rpc)
    programs = load_new_programs(keys, "v3/" if sbpf_v3 else "")

    async def do(session: "ChainSession") -> None:
        from psyche.backends.solana.cluster import name_foreign
        from psyche.backends.solana.programs.check import describe_authorities
        from psyche.backends.solana.programs.deployment import close_programs
        from psyche.backends.solana.programs.deployment import deploy as put
        from psyche.backends.solana.programs.vouching import write_program_ids

        if close:
            before = await session.rpc.get_balance(session.key)
            if not await close_programs(session, programs):
                raise ConfigError(f"--close: the keys in {keys} have nothing on this chain; check --keys and --rpc")
            await tell_return(session, before)
            return
        genesis = await session.rpc.get_genesis_hash()
        name = name_foreign(genesis, session.rpc.endpoints) or "a local chain"
        made = await put(session, programs, name, genesis, is_final=final)
        write_program_ids(file, made)
        for program, one in made.programs.items():
            typer.echo(f"{program:<12} {one.address}  SHA-256 {one.sha256}")
        typer.echo("the bytes on the chain are those of SHA256SUMS, with these ids")
        typer.echo(describe_authorities({program: one.upgrade_authority for program, one in made.programs.items()}))
        typer.echo(f"{file}: give it to the members, and name it with --program-ids (or PSYCHE_PROGRAM_IDS)")

    replace(access, options=options).run_on_chain(do)
