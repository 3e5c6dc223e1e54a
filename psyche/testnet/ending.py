"""The end of a run: its report, its page, a text sample, and where its files are."""

import json
import shutil
import sys
from pathlib import Path
from shlex import quote
from typing import Final

import trio

from psyche.telemetry.console import Console
from psyche.testnet.backends import Prepared
from psyche.testnet.process import Child
from psyche.testnet.report import RunReport, format_report, write_summary
from psyche.testnet.settings import Layout, TestnetSettings
from psyche.watch.saved import write_page
from psyche.watch.sources import LogSource

TUTORIAL: Final = Path(__file__).resolve().parents[2] / "docs" / "tutorial.md"  # in a checkout
SAMPLE_S: Final = 300.0  # loading transformers and 200 tokens on a loaded machine; usually 15 s
SAMPLE_BYTES: Final = 200
SAMPLE_TEMPERATURE: Final = 0.7  # at 1 a model this small writes nonsense
KEPT: Final = frozenset({"checkpoints", "distro", "events.jsonl", "trainer.log", "identity.key"})  # also without --keep


async def finish(prepared: Prepared, settings: TestnetSettings, report: RunReport, console: Console) -> int:
    """Complete the report of a run with what its model wrote, and print it; return the exit code."""
    layout = prepared.layout
    exported = next((Path(client.exported) for client in report.clients if client.exported), None)
    if exported is not None and exported.is_dir():
        link_model(layout.model, exported)
        if settings.sample:
            await add_sample(report, prepared, exported, console)
    is_drawn = await trio.to_thread.run_sync(write_run, layout)
    await trio.to_thread.run_sync(write_summary, report, layout.summary)
    console.print("\n" + format_report(report))
    if report.sample:
        console.print(f"\nafter {report.prompt!r} the trained model wrote {SAMPLE_BYTES} bytes:\n{report.sample}")
    if not settings.keep and not report.problems:
        await trio.to_thread.run_sync(clean, prepared, settings)
    console.print("\n" + describe_run_files(prepared, is_drawn=is_drawn, has_model=exported is not None))
    return 1 if report.problems else 0


def link_model(link: Path, exported: Path) -> None:
    link.unlink(missing_ok=True)
    link.symlink_to(exported)


async def add_sample(report: RunReport, prepared: Prepared, exported: Path, console: Console) -> None:
    """Load the export with plain transformers in a separate process, because that imports torch."""
    console.print("reading the exported model with plain transformers (about 15 s)")
    output = prepared.layout.root / "sample.json"
    argv = [sys.executable, "-m", "psyche", "model", "sample", str(exported), "--bytes", str(SAMPLE_BYTES)]
    argv += ["--temperature", str(SAMPLE_TEMPERATURE)]
    if prepared.held_out is not None:
        argv += ["--held-out", str(prepared.held_out)]
    child = Child("sample", [*argv, "--json-file", str(output)], output=prepared.layout.logs / "sample.log")
    try:
        with trio.move_on_after(SAMPLE_S):
            await child.wait()
    finally:
        await child.end()
    if output.is_file():
        found = json.loads(output.read_text(encoding="utf-8"))
        report.prompt, report.sample = str(found["prompt"]), str(found["written"])
        report.held_out_loss = found["held_out_loss"]
        if found["no_text"]:
            console.print(f"no sample text: {' '.join(str(found['no_text']).split())}")
    else:
        report.problems.append(f"the exported model could not be read: {' '.join(child.get_last_lines(1))}")


def clean(prepared: Prepared, settings: TestnetSettings) -> None:
    layout = prepared.layout
    for folder in (layout.server, layout.owner_wallet.parent):
        shutil.rmtree(folder, ignore_errors=True)
    for number in range(1, settings.num_clients + 1):
        for path in layout.client(number).glob("*"):
            if path.name not in KEPT:
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def describe_run_files(prepared: Prepared, *, is_drawn: bool, has_model: bool) -> str:
    layout = prepared.layout
    root = layout.root
    lines = [f"model    {root}/model"] if has_model else []
    lines += [f"page     {layout.page}   # all about the run, for a browser"] if is_drawn else []
    lines += [f"logs     {layout.logs}", f"events   {layout.events}", f"summary  {layout.summary}"]
    program = get_program()
    lines += ["", "to try next:"]
    if has_model:
        lines.append(f"  {program} model sample {quote(f'{root}/model')} --prompt 'def main('")
    lines.append(f"  {program} watch {quote(str(layout.events))} --play   # the run once more, on a screen")
    lines.append(f"  {program} trace {quote(str(layout.events))} --summary   # where the time went")
    lines.append(f"  {describe_tutorial()}")
    return "\n".join(lines)


def describe_tutorial() -> str:
    if TUTORIAL.is_file():
        return f"your own run, step by step: {TUTORIAL}"
    return f"{get_program()} --help   # your own run"


def get_program() -> str:
    own = Path(sys.executable).with_name("psyche")
    found = shutil.which("psyche")
    return "psyche" if found is not None and Path(found).resolve() == own.resolve() else quote(str(own))


def write_run(layout: Layout) -> bool:
    """Write the page of a run from its event logs; false if there is nothing in them."""
    if not layout.events.is_dir():
        return False
    source = LogSource(layout.events)
    while source.read():
        pass
    if not source.view.nodes:
        return False
    write_page(layout.page, [source.view])
    return True
