"""`psyche dev deploy`: the programs, on a chain that has none yet."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from psyche.cli.chain.commands import LOCAL, ChainAccess, chain_command, tell_return
from psyche.cli.commands.dev import group
from psyche.cli.helpers.outputs import check_target

if TYPE_CHECKING:
    from psyche.backends.solana.session import ChainSession

FILE: Final = "program-ids.toml"

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


@chain_command(
    group,
    "deploy",
    f"psyche dev deploy {LOCAL}",
    f"psyche dev deploy {LOCAL} --sbpf-v3 --final  # for ever",
)
def deploy(
    *,
    chain: ChainAccess,
    cluster: Cluster = "",
    keys: Keys = Path("psyche-programs"),
    final: Final_ = False,
    sbpf_v3: NewestFormat = False,
    close: Close = False,
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

    check_target("--program-ids", chain.options.program_ids)
    file = chain.options.program_ids or keys / FILE
    # The programs need not be there yet, and so no file of their ids.
    options = replace(chain.options, program_ids=None, rpc=cluster or chain.options.rpc)
    programs = load_new_programs(keys, "v3/" if sbpf_v3 else "")

    async def do(session: "ChainSession") -> None:
        from psyche.backends.solana.cluster import name_foreign
        from psyche.backends.solana.programs.check import describe_authorities
        from psyche.backends.solana.programs.deployment import close_programs
        from psyche.backends.solana.programs.deployment import deploy as put
        from psyche.backends.solana.programs.vouching import write_program_ids
        from psyche.errors import ConfigError

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

    replace(chain, options=options).run(do)
