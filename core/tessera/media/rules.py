"""Where a request's images and sounds may come from. `serve` reads these flags before anything else, so little is
imported."""

from __future__ import annotations

from dataclasses import dataclass

from tessera.config.flags import flag


@dataclass(frozen=True)
class MediaRules:
    """Rules for the URLs of images and sounds. Those that hold the file itself (data:) are always read."""

    domains: tuple[str, ...] = flag(
        (),
        "Hosts that images, videos and sounds are fetched from by http(s), such as example.com,*.example.org; * is any "
        "public one.",
        name="allowed_media_domains", metavar="HOSTS", shown_default="none: nothing is fetched",
    )  # fmt: skip
    local_path: str = flag(
        "", "Folder below which requests may name images, videos and sounds by file:// URLs.",
        name="allowed_local_media_path", metavar="FOLDER", shown_default="none: no file is read",
    )  # fmt: skip
    # of a file
    max_bytes: int = 20 * 2**20
    # for a file to arrive, redirects included
    seconds: float = 10.0
    # that are followed
    redirects: int = 3
