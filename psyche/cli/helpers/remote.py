"""Options of commands that read files elsewhere: on the Hugging Face Hub, in Google's buckets, on web servers."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from psyche.cli.helpers.options import option, share_fields
from psyche.cli.helpers.outputs import check_target_folder
from psyche.durable import expand_user
from psyche.storage.port import CACHE_GB, MAX_CONCURRENT_DOWNLOADS, StorageOptions, find_cache_folder, read_environment


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """What these options say; the environment says the rest."""

    hf_token: str | None = field(default=None, repr=False)
    hub_max_concurrent_downloads: int = MAX_CONCURRENT_DOWNLOADS
    allow_private_hosts: bool = False
    cache_dir: Path | None = None
    cache_gb: float = CACHE_GB
    data_manifest: str | None = None

    def get_options(self) -> StorageOptions:
        found = read_environment()
        check_target_folder("--cache-dir", self.cache_dir)  # the default one may be unusable: then nothing is kept
        return replace(
            found,
            hub_token=(self.hf_token or "").strip() or found.hub_token,
            max_concurrent_downloads=self.hub_max_concurrent_downloads,
            allow_private_hosts=self.allow_private_hosts,
            cache_dir=find_cache_folder() if self.cache_dir is None else expand_user(self.cache_dir),
            cache_gb=self.cache_gb,
        )


SOURCES: Final = share_fields(
    Remote,
    has_variables=True,
    hf_token=option(
        "Token for private repositories of the Hub. Others on this machine can read a command's options: better set "
        "the variable, or run `hf auth login` once.",
        metavar="TOKEN",
    ),
    hub_max_concurrent_downloads=option(
        "Requests at once to the Hub, a bucket or the web servers of a run; of small ranges eight times as many.", min=1
    ),
    allow_private_hosts=option(
        "Also read from http addresses and from hosts of a private network, as in tests. Whoever names the run's "
        "places then reaches hosts of your network.",
        "--allow-private-hosts",
    ),
)
_CACHE: Final = share_fields(
    Remote,
    cache_dir=option(
        "Where training data read over HTTP is kept; clients of one machine share it. Default: ~/.cache/psyche.",
        envvar="PSYCHE_CACHE_DIR",
    ),
    cache_gb=option("The most that is kept of it, in GB; what was used longest ago goes first. 0: nothing.",
                    envvar="PSYCHE_CACHE_GB", min=0),
)  # fmt: skip
CACHE_GB_OPTION: Final = {"cache_gb": _CACHE["cache_gb"]}
CACHED_SOURCES: Final = SOURCES | _CACHE
MANIFEST: Final = share_fields(
    Remote,
    has_variables=True,
    data_manifest=option(
        "The manifest of the run's data, as `psyche data manifest` writes it; none: do without. Default: data.manifest "
        "beside the run's file or, on clients, in --local-root.",
        metavar="FILE|none",
    ),
)
