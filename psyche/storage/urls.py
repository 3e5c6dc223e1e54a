"""Single addresses as the files of one storage."""

from collections.abc import Sequence
from functools import partial
from os.path import commonprefix
from typing import Final

from psyche.errors import StorageRefused
from psyche.storage.http import Answer, Headers, HttpStorage, Request, TryFailed
from psyche.storage.judging import HostRefused, check_url, hide_query
from psyche.storage.port import StorageOptions, StoredFile, gather


class UrlStorage(HttpStorage):
    """Files that have an address each; `names` has their names in the order of the addresses: the path below what all
    of them begin with.

    Raises:
        StorageRefused: there is none, one is not an https address, or two differ in nothing but what follows a `?`.
    """

    def __init__(self, urls: Sequence[str], options: StorageOptions) -> None:
        for url in urls:
            try:
                check_url(url, allow_private_hosts=options.allow_private_hosts)
            except HostRefused as error:
                raise StorageRefused(f"{hide_query(url)!a}: {error}") from error
        shown = [hide_query(url) for url in urls]
        # Of one address, or of others that begin alike: the last "/" ends the place.
        place = commonprefix(shown).rpartition("/")[0]  # noqa: RUF071 (the "/" is found afterwards)
        super().__init__(place, options)
        self.names = tuple(one[len(place) + 1 :] for one in shown)
        self._urls = dict(zip(self.names, urls, strict=True))
        if len(self._urls) < len(urls) or not urls:
            raise StorageRefused(f"{place or 'no address'}: each file needs an address of its own, with another path")

    async def _list(self) -> list[StoredFile]:
        return await gather([partial(self._find, name) for name in self.names])

    async def _find(self, name: str) -> StoredFile:
        def judge(answer: Answer) -> None:
            length = answer.head.get("content-length", "")
            if not (length.isascii() and length.isdigit() and len(length) < 19):
                raise TryFailed("does not say its size (Content-Length)", is_refusal=True)

        request = Request(what=f"{self.address}/{name}", url=self._urls[name], method="HEAD", judge=judge)
        head = (await self._http.ask(request)).head
        return StoredFile(name, int(head["content-length"]), head.get("etag", ""))

    async def _locate(self, file: StoredFile) -> tuple[str, Headers]:
        if file.name not in self._urls:
            raise StorageRefused(f"{self.address}/{file.name}: not there")
        # If-Range wants a strong tag: with a weak one every answer would be the whole file.
        is_strong = file.version.startswith('"')
        return self._urls[file.name], {"if-range": file.version} if is_strong else {}

    def _is_version(self, file: StoredFile, answer: Answer) -> bool:
        return file.version in ("", answer.head.get("etag"))


open_urls: Final = UrlStorage
