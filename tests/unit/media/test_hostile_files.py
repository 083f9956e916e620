"""Files that are no images, or are made to cost a reader time and memory: each is one line for who sent it."""

from __future__ import annotations

import io
import re
import struct
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tessera.errors import RequestError
from tessera.media.messages import MediaStart
from tessera.media.workers import MediaWorkers
from tests.processor_folders import FOLDERS

MAX_PIXELS = 2**22
OK = "^$"
NO_KIND, BROKEN, TOO_MANY = "of a kind that is not read", "truncated or broken", "more than 4194304 pixels"


def saved(kind: str, mode: str = "RGB", size: tuple[int, int] = (40, 30), **options: Any) -> bytes:
    data = io.BytesIO()
    pixels = np.random.default_rng(1).integers(0, 256, (size[1], size[0], 4), dtype=np.uint8)
    Image.fromarray(pixels, "RGBA").convert(mode).save(data, kind, **options)
    return data.getvalue()


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, *, body: bytes = b"", extra: bytes = b"", depth: int = 1) -> bytes:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + extra + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def black(width: int, height: int, extra: bytes = b"") -> bytes:
    """All zeros, a thousandth of their size."""
    packer = zlib.compressobj(9)
    row = bytes(1 + (width + 7) // 8)
    body = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()
    return png(width, height, body=body, extra=extra)


def gif(frames: int) -> bytes:
    """So many frames of one pixel."""
    frame = (
        b"\x21\xf9\x04\x00\x00\x00\x00\x00" + b"\x2c" + bytes(4) + struct.pack("<HHB", 1, 1, 0) + b"\x02\x02D\x01\x00"
    )
    return b"GIF89a" + struct.pack("<HHBBB", 1, 1, 0x80, 0, 0) + bytes(6) + frame * frames + b";"


def animated(kind: str, frames: int) -> bytes:
    data = io.BytesIO()
    pictures = [Image.new("RGB", (8, 8), (number % 256, number // 256, 0)) for number in range(frames)]
    pictures[0].save(data, kind, save_all=True, append_images=pictures[1:])
    return data.getvalue()


def bmp(width: int, height: int) -> bytes:
    info = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, 0, 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", 54 + 64, 0, 0, 54) + info + bytes(64)


def jpeg_header(width: int, height: int) -> bytes:
    whole = bytearray(saved("JPEG"))
    place = whole.index(b"\xff\xc0") + 5
    whole[place : place + 4] = struct.pack(">HH", height, width)
    return bytes(whole)


def webp_header(width: int, height: int) -> bytes:
    body = b"VP8X" + struct.pack("<I", 10) + bytes(4) + (width - 1).to_bytes(3, "little")
    body += (height - 1).to_bytes(3, "little")
    return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WEBP" + body


def tiff(*entries: tuple[int, int, int, int], next_ifd: int = 0) -> bytes:
    rows = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    return b"II*\x00" + struct.pack("<IH", 8, len(entries)) + rows + struct.pack("<I", next_ifd) + bytes(64)


def scans(count: int) -> bytes:
    """A progressive JPEG whose last scan comes again and again."""
    whole = saved("JPEG", size=(1000, 1000), progressive=True, quality=30)
    last = whole.rindex(b"\xff\xda")
    return whole[:last] + whole[last:-2] * count + b"\xff\xd9"


def oriented(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return saved("JPEG", exif=exif)


JPEG, PNG = saved("JPEG"), saved("PNG")
ZIP = b"PK\x03\x04" + bytes(26) + b"x.php<?php system($_GET['x']); ?>"
# Each with a pattern of what its sender is told.
FILES: dict[str, tuple[Callable[[], bytes], str]] = {
    "nothing": (lambda: b"", NO_KIND),
    "a byte": (lambda: b"\x89", NO_KIND),
    "noise": (lambda: np.random.default_rng(3).bytes(100_000), NO_KIND),
    "zeros": (lambda: bytes(1_000_000), NO_KIND),
    "text": (lambda: b"hello " * 1000, NO_KIND),
    "SVG": (lambda: b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>', NO_KIND),
    "SVG with entities": (
        lambda: b'<?xml version="1.0"?><!DOCTYPE s [<!ENTITY a SYSTEM "file:///etc/passwd">]><svg>&a;</svg>', NO_KIND,
    ),
    "HTML": (lambda: b"<!DOCTYPE html><script>alert(1)</script>", NO_KIND),
    "PDF": (lambda: b"%PDF-1.7\n1 0 obj<<>>endobj", NO_KIND),
    "PostScript": (lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(id) system\n", NO_KIND),
    "PPM": (lambda: b"P6 60000 60000 255\n" + bytes(100), NO_KIND),
    "icon": (lambda: saved("ICO"), NO_KIND),
    "Photoshop": (lambda: b"8BPS\x00\x01" + bytes(100), NO_KIND),
    "HEIC": (lambda: b"\x00\x00\x00\x18ftypheic" + bytes(100), NO_KIND),
    "MP4": (lambda: b"\x00\x00\x00\x18ftypmp42" + bytes(100), NO_KIND),
    "ZIP": (lambda: ZIP, NO_KIND),
    "PNG's signature alone": (lambda: PNG[:8], NO_KIND),
    "PNG cut short": (lambda: PNG[: len(PNG) // 2], BROKEN),
    "JPEG cut short": (lambda: JPEG[: len(JPEG) // 2], BROKEN),
    "GIF cut short": (lambda: saved("GIF", "P")[:400], NO_KIND),
    "WebP cut short": (lambda: saved("WEBP", lossless=True)[:500], BROKEN),
    "BMP cut short": (lambda: saved("BMP")[:500], BROKEN),
    "TIFF cut short": (lambda: saved("TIFF")[:500], BROKEN),
    "PNG with a wrong checksum": (lambda: PNG[:40] + b"\x00" + PNG[41:], NO_KIND),
    "PNG of no size": (lambda: png(0, 0), NO_KIND),
    "JPEG of no size": (lambda: jpeg_header(0, 0), NO_KIND),
    "PNG of 2^62 pixels": (lambda: png(2**31 - 1, 2**31 - 1), TOO_MANY),
    "PNG of 2^31 pixels": (lambda: png(2**16, 2**15), TOO_MANY),
    "PNG bomb": (lambda: black(30_000, 30_000), TOO_MANY),
    "PNG one row too high": (lambda: black(2048, 2049), TOO_MANY),
    "PNG as large as may be": (lambda: black(2048, 2048), OK),
    "JPEG of 2^32 pixels": (lambda: jpeg_header(65_500, 65_500), TOO_MANY),
    "WebP of 2^28 pixels": (lambda: webp_header(16_383, 16_383), f"{TOO_MANY}|{BROKEN}"),
    "BMP of 2^62 pixels": (lambda: bmp(2**31 - 1, 2**31 - 1), TOO_MANY),
    "BMP of a negative height": (lambda: bmp(2**15, -(2**31)), f"{TOO_MANY}|{BROKEN}"),
    "TIFF of 2^62 pixels": (
        lambda: tiff((256, 4, 1, 2**31 - 1), (257, 4, 1, 2**31 - 1), (262, 3, 1, 1), (273, 4, 1, 8)),
        f"{TOO_MANY}|{BROKEN}",
    ),
    "TIFF that points to itself": (lambda: tiff((256, 4, 1, 9), (257, 4, 1, 9), (34665, 4, 1, 8), next_ifd=8), NO_KIND),
    "TIFF with 2^31 strips": (lambda: tiff((256, 4, 1, 9), (257, 4, 1, 9), (273, 4, 2**31, 8)), f"{NO_KIND}|{BROKEN}"),
    "PNG with a bomb of text": (
        lambda: png(1, 1, body=zlib.compress(b"\0\0"), extra=chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(2**28), 9))),
        BROKEN,
    ),
    "PNG with a bomb of a profile": (
        lambda: png(1, 1, body=zlib.compress(b"\0\0"), extra=chunk(b"iCCP", b"a\0\0" + zlib.compress(bytes(2**28), 9))),
        BROKEN,
    ),
    "GIF of 10^5 frames": (lambda: gif(100_000), OK),
    "APNG of 500 frames": (lambda: animated("PNG", 500), OK),
    "WebP of 500 frames": (lambda: animated("WEBP", 500), OK),
    "GIF that is a script": (lambda: b"GIF89a/*" + bytes(8) + b"*/=1;alert(1)//", NO_KIND),
    "JPEG that is a ZIP too": (lambda: JPEG + ZIP, OK),
    "PNG that is a page too": (lambda: PNG + b"<script>alert(1)</script>", OK),
    "progressive JPEG of 300 scans": (lambda: scans(300), f"{BROKEN}|{OK}"),
    "JPEG with an orientation that there is not": (lambda: oriented(77), OK),
    "a line of pixels": (lambda: black(60_000, 1), f"does not take|needed more memory|{OK}"),
    "a pixel": (lambda: black(1, 1), OK),
    "CMYK": (lambda: saved("JPEG", "CMYK"), OK),
    "16 bits": (lambda: png(2, 1, depth=16, body=zlib.compress(bytes(5))), OK),
    "see-through": (lambda: saved("PNG", "RGBA"), OK),
    "WebP": (lambda: saved("WEBP"), OK),
    "TIFF": (lambda: saved("TIFF", compression="tiff_lzw"), OK),
    "BMP": (lambda: saved("BMP"), OK),
}  # fmt: skip


def peak_mib(pid: int) -> int:
    """The most memory that a process has had."""
    (line,) = (row for row in Path(f"/proc/{pid}/status").read_text().splitlines() if row.startswith("VmHWM"))
    return int(line.split()[1]) // 1024


async def test_no_file_costs_much_or_ends_the_worker(tmp_path: Path) -> None:
    folder = FOLDERS["llava"].write(tmp_path)
    async with MediaWorkers(MediaStart(str(folder), max_pixels=MAX_PIXELS)) as workers:
        told, slow = {}, {}
        for name, (make, _) in FILES.items():
            data = make()
            start = time.monotonic()
            try:
                media = await workers.process("image", data)
                told[name] = "" if media.num_rows == 16 else "not all rows"
            except RequestError as error:
                told[name] = error.message
            slow[name] = time.monotonic() - start
        process = workers._queue.begin()
        assert peak_mib(process.pid) < 700, "of which 100 are the worker's"
        assert workers.restarts == 0
    wrong = {name: told[name] for name, (_, expected) in FILES.items() if not re.search(expected, told[name])}
    assert wrong == {}
    assert not any("\n" in message for message in told.values())
    assert {name: seconds for name, seconds in slow.items() if seconds > 20} == {}
