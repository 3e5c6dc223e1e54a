"""The images of server and client: the steps of their Dockerfiles work in a clean root, and a run in them finishes."""

import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from clean_root import NoCleanRoot
from kits.run_files import MakeRun
from run_dockerfile import Image, build, find_cache, find_hindrance, is_root, open_scratch, read_steps

from psyche.testnet.free_port import choose_port

ROOT = Path(__file__).resolve().parents[2]
START_S, END_S = 120.0, 300.0  # only a broken run reaches them
COMPILERS = ("cc", "gcc", "g++", "ld", "make")


def test_steps_are_read_without_comments_and_with_their_continued_lines() -> None:
    text = '# syntax\nFROM a\n# why\nRUN one && \\\n    # not this\n    two\nCMD ["x"]\n'
    assert read_steps(text) == [("FROM", "a"), ("RUN", "one &&  two"), ("CMD", '["x"]')]


def test_without_uv_the_script_says_which_python_has_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match=r"there is no `uv`; use the Python of a checkout: \.venv/bin/python"):
        find_cache()


def test_both_images_have_the_installer_that_the_scripts_use() -> None:
    (line,) = [line for line in (ROOT / "scripts" / "setup.sh").read_text().splitlines() if "UV_VERSION=" in line]
    version = line.split('"')[1]
    for name in ("server", "client"):
        assert f" uv=={version} " in (ROOT / "docker" / f"{name}.Dockerfile").read_text()


@pytest.fixture(scope="module")
def images() -> Iterator[dict[str, Image]]:
    if hindrance := find_hindrance():
        pytest.skip(hindrance)
    with ExitStack() as stack:
        made: dict[str, Image] = {}
        for name in ("server", "client"):
            folder = Path(stack.enter_context(open_scratch()))
            try:
                made[name] = build(ROOT / "docker" / f"{name}.Dockerfile", folder)
            except NoCleanRoot as error:
                pytest.skip(str(error))
        yield made


def run(image: Image, *command: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(image.enter(command, env=env), capture_output=True, text=True, check=False, timeout=END_S)


@pytest.mark.e2e
@pytest.mark.whole
@pytest.mark.parametrize("name", ["server", "client"])
def test_an_image_has_psyche_but_neither_a_compiler_nor_this_checkout(images: dict[str, Image], name: str) -> None:
    image = images[name]
    assert run(image, "psyche", "--version").stdout.startswith("psyche ")
    assert [one for one in COMPILERS if run(image, "/bin/sh", "-c", f"command -v {one}").returncode == 0] == []
    assert not (image.root / ROOT.relative_to("/")).exists()
    assert run(image, "id", "-un").stdout.strip() == ("psyche" if is_root() else "root")


@pytest.mark.e2e
@pytest.mark.whole
def test_a_server_and_a_client_in_their_images_finish_a_run(
    images: dict[str, Image], make_run: MakeRun, tiny_model: Path
) -> None:
    config = make_run(init_min_clients=1, total_steps=7)
    (config / "model").unlink()
    shutil.copytree(tiny_model, config / "model")  # a link out of the folder leads nowhere in an image
    for path in (config, *config.rglob("*")):
        path.chmod(path.stat().st_mode | (0o755 if path.is_dir() else 0o644))  # for the image's user
    port = str(choose_port())
    settings = {"RUN_ID": "e2e", "SERVER_ADDR": f"127.0.0.1:{port}", "BIND_P2P_PORT": "0"}
    mounts = [f"{config}:/my-run"]
    server, client = images["server"], images["client"]
    command = [port if word == "19400" else word for word in (*server.entrypoint, *server.cmd)]
    assert port in command
    with subprocess.Popen(server.enter(command, mounts=mounts, env=settings)) as serving:
        try:
            until_healthy(server, settings, serving)
            training = [*client.entrypoint, *client.cmd]
            done = subprocess.run(client.enter(training, mounts=mounts, env=settings), check=False, timeout=END_S)
            assert done.returncode == 0
            told = run(server, "psyche", "run", "info", env=settings).stdout
            assert "finished" in told
            serving.send_signal(signal.SIGINT)
            assert serving.wait(START_S) == 0
        finally:
            serving.kill()
    assert (server.root / "data" / "server.key").is_file()
    assert (client.root / "data" / "identity.key").is_file()


def until_healthy(server: Image, settings: dict[str, str], serving: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while (done := run(server, *server.health, env=settings)).returncode:
        assert serving.poll() is None, "the server ended"
        assert time.monotonic() < deadline, done.stderr
