"""Every command explains itself; the entry point answers fast."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

import psyche
from psyche import __version__
from psyche.cli.app import app
from psyche.cli.main import main

PACKAGE = Path(psyche.__file__).parent
HEAVY = ("torch", "transformers", "libp2p", "trio", "pydantic", "numpy", "structlog", "cryptography")


def walk(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from walk(inner, (*path, name))


DOCUMENTED = {
    "": "doctor eval init train replay simulate trace verify watch",
    "data": "tokenize prepare manifest",
    "model": "init convert sample chat serve inspect pull push",
    "server": "run validate-config",
    "run": "pause resume allow disallow allowed set-future-epoch-rates update-config extend info collect "
    "create close tick checkpoint list can-join explain preview-lr",
    "auth": "create read delegate delete",
    "rewards": "claim top-up withdraw show close",
    "client": "train sidecar predownload show-identity show-wallet",
    "distro": "show",
    "dev": "airdrop deploy idl mint replay validator",
    "local-testnet": "start",
}
COMMANDS = list(walk(typer.main.get_command(app)))


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


@pytest.mark.parametrize("path", [path for path, _ in COMMANDS], ids=lambda path: " ".join(path) or "psyche")
def test_every_command_teaches_with_examples(path: tuple[str, ...]) -> None:
    result = run(*path, "--help")
    assert result.exit_code == 0
    examples = result.output.partition("Examples:")[2]
    assert "psyche " in examples


def get_examples() -> Iterator[tuple[str, str]]:
    """The examples of all help pages, continued lines joined, each with the page that has it."""
    for path, command in COMMANDS:
        printed = (command.epilog or "").partition("Examples:\n")[2]
        for example in re.sub(r" \\\n +", " ", printed).splitlines():
            yield " ".join(path), example.strip()


def test_every_example_is_what_its_command_takes() -> None:
    """All of its options exist, none that is needed is missing, and nothing stands for what the reader must fill in."""
    whole = typer.main.get_command(app)
    for page, example in get_examples():
        words = shlex.split(re.sub(r"\$\(.*?\)", "01" * 32, example), comments=True)
        words = words[words.index("|") + 1 :] if "|" in words else words
        context, command = whole.make_context("psyche", words[words.index("psyche") + 1 :]), whole
        while hasattr(command, "commands"):
            name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
            with pytest.MonkeyPatch.context() as patch:
                for setting in words[: words.index("psyche")]:
                    patch.setenv(*setting.split("=", 1))
                context = command.make_context(name, rest, parent=context)
        assert not re.search(r"\b(HOST|KEY|RUN|192\.0\.2\.\d+)\b", example), f"{page}: {example}"


def test_no_line_of_an_example_is_wider_than_a_terminal() -> None:
    lines = [line for _, command in COMMANDS for line in (command.epilog or "").splitlines()]
    assert [line for line in lines if len(line) > 79] == []


@pytest.mark.parametrize(
    ("path", "command"), COMMANDS, ids=lambda value: " ".join(value) if isinstance(value, tuple) else ""
)
def test_every_option_says_what_it_is_for(path: tuple[str, ...], command: Any) -> None:
    unexplained = [option.name for option in command.params if option.name != "help" and not option.help]
    assert unexplained == [], path


def test_the_commands_are_those_of_the_documentation() -> None:
    leaves = {" ".join(path) for path, command in COMMANDS if not (command.hidden or hasattr(command, "commands"))}
    assert leaves == {f"{group} {name}".strip() for group, names in DOCUMENTED.items() for name in names.split()}


def test_options_of_a_client_come_from_the_environment_but_the_device_does_not() -> None:
    (command,) = [command for path, command in COMMANDS if path == ("client", "train")]
    variables = {name: option.envvar for option in command.params if option.name != "help" for name in option.opts}
    assert variables["--run-id"] == "RUN_ID"
    assert variables["--identity-secret-key-path"] == "IDENTITY_SECRET_KEY_PATH"
    assert variables["--bind-p2p-port"] == "BIND_P2P_PORT"
    assert variables["--checkpoint-dir"] == "CHECKPOINT_DIR"
    assert variables["--device"] is None


def test_help_loads_nothing_heavy() -> None:
    program = (
        "import sys\nfrom psyche.cli.app import app\ntry:\n    app(['--help'])\nexcept SystemExit:\n    pass\n"
        f"print('HEAVY', [name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("HEAVY []")


def test_the_version_is_printed_without_loading_the_commands() -> None:
    program = (
        "import sys\nfrom psyche.cli.main import main\nsys.argv = ['psyche', '--version']\nmain()\n"
        "print('typer' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == [f"psyche {__version__}", "False"]
    assert run("--version").output == f"psyche {__version__}\n"


@pytest.mark.parametrize("path", [path for path, command in COMMANDS if hasattr(command, "commands")], ids=" ".join)
def test_a_group_without_a_command_shows_its_help(path: tuple[str, ...]) -> None:
    assert "Commands:" in run(*path).output


@pytest.mark.parametrize("path", [path for path, command in COMMANDS if hasattr(command, "commands")], ids=" ".join)
def test_the_list_of_commands_cuts_no_summary_short(path: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, [*path, "--help"], terminal_width=80, env={"COLUMNS": "80"})
    commands = result.output.partition("Commands:")[2].partition("Examples:")[0]
    assert commands.count("\n") > 1
    assert "..." not in commands
    assert "…" not in commands


@pytest.mark.parametrize(
    ("typed", "expected"),
    [("server va", "validate-config"), ("client train --data-d", "--data-dir"), ("client train --logs j", "json")],
)
def test_the_tab_key_completes_commands_options_and_values(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], typed: str, expected: str
) -> None:
    monkeypatch.setenv("_PSYCHE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"psyche {typed}")
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split())))
    monkeypatch.setattr(sys, "argv", ["psyche"])
    with pytest.raises(SystemExit):
        main()
    assert capsys.readouterr().out.split() == [expected]


def test_completion_is_offered_by_the_command_itself() -> None:
    assert "--install-completion" in run("--help").output
    assert "--install-completion" not in run("server", "--help").output


def test_an_unknown_option_is_named() -> None:
    result = run("client", "train", "--colour", "red")
    assert result.exit_code == 2
    assert "--colour" in result.output


def test_ctrl_c_while_the_commands_load_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(**_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("psyche.cli.app.app", interrupt)
    monkeypatch.setattr(sys, "argv", ["psyche", "doctor"])
    with pytest.raises(SystemExit) as exit_:
        main()
    assert exit_.value.code == 130


def test_every_command_that_a_text_names_is_there() -> None:
    """Help, messages and comments name commands as `psyche client train ...`."""
    commands = {path: command for path, command in COMMANDS if path}
    groups = {path for path, command in commands.items() if hasattr(command, "commands")}
    unknown: set[str] = set()
    for file in sorted(PACKAGE.rglob("*.py")):
        for named in re.findall(r"`psyche ([a-z][a-z-]*)(?: ([a-z][a-z-]*))?", file.read_text(encoding="utf-8")):
            path = tuple(word for word in named if word)
            if (path if path[:1] in groups else path[:1]) not in commands:
                unknown.add(f"{file.name}: psyche {' '.join(path)}")
    assert unknown == set()
