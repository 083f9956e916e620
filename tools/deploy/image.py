"""Builds the image for CPUs from its Dockerfile, and serves from it as a container does:
`python -m tools.deploy.image`.

Nothing comes from a registry: Debian's packages make the base (mmdebstrap), buildah builds in a chroot, and pip's
packages are downloaded beforehand, as pip is configured here. bubblewrap then runs the image with a read-only root, as
the image's user, without rights and with 2 GiB of memory. Prints sizes, files that nobody should find in an image, and
how long it takes until the server is ready. Ends with 1 if something is not as it should be. Needs root, and the Python
of the base.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tessera._version import __version__
from tools.build_dist import build
from tools.local_server import free_port

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "deploy/docker/Dockerfile"
BAKE = ROOT / "deploy/docker/docker-bake.json"
FOLDER = ROOT / "build/image"
BASE, SUITE, PYTHON = "docker.io/library/debian:bookworm-slim", "bookworm", (3, 11)
DEBIAN = "http://deb.debian.org/debian"
SLIM = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/info/*", "/usr/share/locale/*")
"""What Debian's slim images leave out."""
TORCH = "torch==2.13.0+cpu"
USER = 10001
TEMPORARY = ("/tmp", "/dev/shm")  # noqa: S108  # in the sandbox
"""Folders in memory, which are empty at the start."""
MOST_BYTES = 1_500_000_000
MEMORY_BYTES = 2 * 2**30
READY_SECONDS = 120.0
ENDING_SECONDS = 30.0
SHOWN_PACKAGES = 12


@dataclass(frozen=True)
class Image:
    """A built image: its root file system, and what its Dockerfile says of containers."""

    root: Path
    environment: Mapping[str, str]
    command: Sequence[str]
    health: Sequence[str]


def run(command: Sequence[str]) -> str:
    """What it prints. Raises CalledProcessError."""
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip()


def base() -> Path:
    """The base image's files, as an archive that later runs use again."""
    archive = FOLDER / f"{SUITE}.tar"
    if not archive.exists():
        excludes = [f"--dpkgopt=path-exclude={pattern}" for pattern in SLIM]
        partial = archive.with_suffix(".partial.tar")
        run(["mmdebstrap", "--quiet", "--variant=minbase", *excludes, SUITE, str(partial), DEBIAN])
        partial.rename(archive)
    return archive


def context(folder: Path, extras: str) -> None:
    """The folder that the Dockerfile copies from, with all that pip will want."""
    build(ROOT, folder / "dist")
    shutil.copy(ROOT / "constraints.txt", folder)
    (folder / "pip.conf").write_text("[global]\nno-index = true\n", encoding="utf-8")
    wheels = str(folder / "dist")
    wanted = [TORCH, f"tessera-llm[{extras}]=={__version__}"]
    pins = ["--constraint", str(ROOT / "constraints.txt")]
    run([sys.executable, "-m", "pip", "download", "--quiet", "--dest", wheels, "--find-links", wheels, *pins, *wanted])


@contextmanager
def built(arguments: Mapping[str, str], folder: Path) -> Iterator[Image]:
    """arguments: of the Dockerfile. folder: for buildah's storage, which is as large as three images."""
    buildah = [
        "buildah",
        "--root",
        str(folder / "storage"),
        "--runroot",
        str(folder / "run"),
        "--storage-driver",
        "vfs",
    ]
    files = folder / "context"
    files.mkdir()
    context(files, arguments["EXTRAS"])
    container = run([*buildah, "from", "scratch"])
    run([*buildah, "add", "--quiet", container, str(base()), "/"])
    run([*buildah, "commit", "--quiet", "--rm", container, BASE])
    given = [word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")]
    run([
        *buildah, "build", "--quiet", "--isolation", "chroot", "--pull-never", "--layers=false", "--format", "docker",
        "--ignorefile", f"{DOCKERFILE}.dockerignore", "--secret", f"id=pip,src={files / 'pip.conf'}", *given,
        "--file", str(DOCKERFILE), "--tag", "tessera:cpu", str(files),
    ])  # fmt: skip
    container = run([*buildah, "from", "--pull-never", "localhost/tessera:cpu"])
    settings = json.loads(run([*buildah, "inspect", container]))["Docker"]["config"]
    assert settings["User"] == f"{USER}:{USER}"
    root = Path(run([*buildah, "mount", container]))
    try:
        yield Image(
            root,
            dict(variable.split("=", 1) for variable in settings["Env"]),
            [*settings["Entrypoint"], *settings["Cmd"]],
            settings["Healthcheck"]["Test"][1:],
        )
    finally:
        run([*buildah, "umount", container])


def sandbox(image: Image, folders: Path) -> list[str]:
    """Runs what follows as a container of the image would, but in this machine's network."""
    writable = [word for name in ("cache", "models") for word in ("--bind", str(folders / name), f"/{name}")]
    variables = [word for name, value in image.environment.items() for word in ("--setenv", name, value)]
    return [
        "bwrap", "--ro-bind", str(image.root), "/", "--proc", "/proc", "--dev", "/dev", "--ro-bind", "/sys", "/sys",
        *(word for folder in TEMPORARY for word in ("--perms", "1777", "--tmpfs", folder)), *writable, "--unshare-pid",
        "--unshare-ipc", "--as-pid-1", "--die-with-parent", "--chdir", TEMPORARY[0], "--clearenv", *variables, "--",
        "/usr/bin/setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--no-new-privs",
        "--bounding-set=-all", "--inh-caps=-all", "--",
    ]  # fmt: skip


@contextmanager
def limited(limit: int) -> Iterator[Path | None]:
    """A group of processes with this much memory; None where groups cannot be made here."""
    for parent, file in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        group = Path(parent, f"tessera-{os.getpid()}")
        if not Path(parent, "cgroup.procs").exists() or not os.access(parent, os.W_OK):
            continue
        group.mkdir()
        try:
            (group / file).write_text(str(limit), encoding="utf-8")
            yield group
        finally:
            group.rmdir()
        return
    yield None


@dataclass(frozen=True)
class Visit:
    """What a server of the image did."""

    ready_seconds: float
    answer: str
    health_status: int
    # with which a file at the root could not be written
    root_status: int
    exit_status: int
    ending_seconds: float
    # None where memory was not limited
    peak_bytes: int | None


def visit(image: Image, folder: Path) -> Visit:
    """Starts, asks and ends a server. Raises TimeoutError."""
    for name in ("cache", "models"):
        (folder / name).mkdir()
        os.chown(folder / name, USER, USER)
    port = free_port()
    arguments = [*image.command]
    arguments[arguments.index("--host") + 1], arguments[arguments.index("--port") + 1] = "127.0.0.1", str(port)
    health = [word.replace(":8000/", f":{port}/") for word in image.health]
    write = ["python", "-c", "open('/written', 'w')"]
    with limited(MEMORY_BYTES) as group, (folder / "log").open("wb") as log:
        # A shell enters the group and becomes the sandbox, whose processes are in it then.
        enter = [] if group is None else ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "enter"]
        begun = time.monotonic()
        server = subprocess.Popen([*enter, *sandbox(image, folder), *arguments], stdout=log, stderr=log)
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as http:
                _wait(server, http, folder / "log")
                ready = time.monotonic() - begun
                answer = _ask(http)
            healthy, written = (
                subprocess.run([*sandbox(image, folder), *each], capture_output=True, check=False).returncode
                for each in (health, write)
            )
            begun = time.monotonic()
            run(["pkill", "-TERM", "--parent", str(server.pid)])  # its first process, as a container's runtime does
            status = server.wait(ENDING_SECONDS)
            return Visit(ready, answer, healthy, written, status, time.monotonic() - begun, _peak(group))
        finally:
            server.kill()
            server.wait()


def _wait(server: subprocess.Popen[bytes], http: httpx.Client, log: Path) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        with contextlib.suppress(httpx.TransportError):
            if http.get("/readyz").is_success:
                return
        time.sleep(0.05)
    raise TimeoutError(f"The server was not ready.\n{log.read_text(encoding='utf-8')}")


def _ask(http: httpx.Client) -> str:
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    answer = http.post("/v1/chat/completions", json={"messages": messages}).raise_for_status()
    text: str = answer.json()["choices"][0]["message"]["content"]
    return text


def _peak(group: Path | None) -> int | None:
    for name in ("memory.max_usage_in_bytes", "memory.peak"):
        if group is not None and (group / name).exists():
            return int((group / name).read_text(encoding="utf-8"))
    return None


def sizes(root: Path) -> dict[str, int]:
    """Bytes by package of Python, and of what is not Python's."""
    site = next((root / "opt/tessera/lib").glob("python3*/site-packages"))
    counted: dict[str, int] = {}
    for path in _files(site):
        name = path.relative_to(site).parts[0].removesuffix(".libs")
        counted[name] = counted.get(name, 0) + path.lstat().st_size
    counted["(Debian)"] = sum(path.lstat().st_size for path in _files(root)) - sum(counted.values())
    return counted


def findings(root: Path) -> list[str]:
    """Files with the rights of their owner for whoever runs them, and what anybody may write."""
    lines = []
    for path in root.rglob("*"):
        mode, place = path.lstat().st_mode, f"/{path.relative_to(root)}"
        if path.is_symlink() or not (path.is_file() or path.is_dir()):  # a container gets devices of its own
            continue
        if path.is_file() and mode & 0o6000:
            lines.append(f"{place} has another's rights")
        if mode & 0o002 and not mode & 0o1000:
            lines.append(f"{place} can be written by anybody")
    return lines


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_symlink() or path.is_file())


def arguments_of(platform: str) -> dict[str, str]:
    """Those of the Dockerfile for a platform; its defaults count where the bake file has none."""
    targets: dict[str, Any] = json.loads(BAKE.read_text(encoding="utf-8"))["target"]
    return {"EXTRAS": "cpu,vision,audio,video", **targets[platform].get("args", {})}


def problems_of(seen: Visit, total: int) -> Iterator[str]:
    if total > MOST_BYTES:
        yield f"{total / 1e6:,.0f} MB are more than {MOST_BYTES / 1e6:,.0f}"
    if "Paris" not in seen.answer:
        yield f"answered {seen.answer!r}"
    if seen.health_status:
        yield f"the health check ended with {seen.health_status}"
    if not seen.root_status:
        yield "the root can be written"
    if seen.exit_status:
        yield f"the server ended with {seen.exit_status}"


def main() -> int:
    if os.geteuid() != 0 or sys.version_info[:2] != PYTHON:
        print(f"Needs root, and Python {'.'.join(map(str, PYTHON))} as {SUITE} has it.")
        return 2
    FOLDER.mkdir(parents=True, exist_ok=True)
    arguments = {**arguments_of("cpu"), "TORCH": TORCH}
    with tempfile.TemporaryDirectory(dir=FOLDER) as name, built(arguments, Path(name)) as image:
        by_package = sizes(image.root)
        found = findings(image.root)
        seen = visit(image, Path(name))
    total = sum(by_package.values())
    print(f"{total / 1e6:,.0f} MB, of which")
    for package, count in sorted(by_package.items(), key=lambda each: -each[1])[:SHOWN_PACKAGES]:
        print(f"  {count / 1e6:7,.1f} MB  {package}")
    memory = "not limited here" if seen.peak_bytes is None else f"{seen.peak_bytes / 2**20:,.0f} MiB of 2,048 at most"
    print(f"ready after {seen.ready_seconds:.1f} s, ended {seen.ending_seconds:.1f} s after SIGTERM, memory: {memory}")
    problems = [*found, *problems_of(seen, total)]
    print(*problems, sep="\n")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
