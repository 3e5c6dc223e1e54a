"""A real browser, headless; without one, the tests that import this are skipped."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

CHROME = shutil.which("chromium-headless-shell") or ""
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-dev-shm-usage"]

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
if not CHROME:
    pytest.skip("no browser: apt-get install --no-install-recommends chromium-headless-shell", allow_module_level=True)


@contextmanager
def open_browser(*flags: str) -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        yield started.chromium.launch(executable_path=CHROME, args=[*FLAGS, *flags])


def open_tab(browser: Any, address: str, problems: list[str], **options: Any) -> Any:
    tab = browser.new_context(**options).new_page()
    tab.on("pageerror", lambda error: problems.append(str(error)))
    tab.on("console", lambda said: problems.append(said.text) if said.type == "error" else None)
    tab.goto(address)
    return tab
