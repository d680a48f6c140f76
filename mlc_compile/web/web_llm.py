"""web-llm's JavaScript: one script of the npm package, found on disk or fetched with npm once.

The package is pinned by what npm's registry says of it, and the script in it by its own digest,
so that a copy in the cache is trusted for what it is, whoever wrote it. It is never part of ours.
"""

import base64
import errno
import hashlib
import json
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mlc_compile.errors import ConfigError, DamageError, EnvironmentError_, TargetError

PACKAGE: Final = "@mlc-ai/web-llm"
VERSION: Final = "0.2.86"  # the one whose calls our libraries answer; also in emit/wasm/abi.py
INTEGRITY: Final = (  # of the package, as npm writes it
    "sha512-plciXBCYtY7iTKHzEcsqOfSO+s5u8NqMYFPnHmRbsN8CEdKcolgXIoGLPbzO6FtJHV43m7YP00x6qQ6Kb8CJJw=="
)
SCRIPT: Final = "lib/index.js"  # in the package
SCRIPT_SHA256: Final = "ae2642e73a4a9896c21efb3a067c4666446f8b49cbe2012f4b576f5d83d5f206"

BY_HAND: Final = f"npm install {PACKAGE}@{VERSION}, and give its directory with --web-llm"
# What npm says around the one line that tells what went wrong.
NPM_LINE: Final = re.compile(r"^npm (?:error|ERR!) (?!code |errno |syscall |A complete log)(.+)$")


@dataclass(frozen=True, slots=True)
class Script:
    """web-llm as one module for browsers."""

    path: Path
    version: str
    sha256: str

    @property
    def genuine(self) -> bool:
        """Whether it is, byte for byte, the one that npm has for the pinned version."""
        return self.sha256 == SCRIPT_SHA256


def find_script(
    given: Path | None, built_for: str, cache_dir: Path, say: Callable[[str], None]
) -> Script:
    """The script of the package at `given`; without it, the pinned one, fetched if need be.

    `given`: the package, a directory in whose node_modules it is, or its lib/index.js;
    `built_for`: the version that the library knows; `say` hears that something is fetched.
    Raises ConfigError (no such package), TargetError (another version, no npm, or npm fails),
    DamageError (npm brings another package) and OSError (the cache cannot be written).
    """
    if given is not None:
        script = _script_of(given)
        if script.version != built_for:
            raise TargetError(
                f"{given} is web-llm {script.version}, but the library was built for {built_for}",
                hint=f"npm install {PACKAGE}@{built_for}, or rebuild the artifact",
            )
        return script
    if built_for != VERSION:
        raise TargetError(
            f"the library was built for web-llm {built_for}, but mlc-compile is at {VERSION}",
            hint=f"rebuild the artifact, or give web-llm {built_for} with --web-llm",
        )
    kept = cache_dir / "web-llm" / f"web-llm-{VERSION}.js"
    if not _is_pinned(kept):
        say(f"fetching {PACKAGE} {VERSION} with npm")
        _write_whole(kept, _fetched())
    return Script(kept, VERSION, SCRIPT_SHA256)


def _script_of(given: Path) -> Script:
    """The script of a package on disk, whose package.json must say that it is the package."""
    candidates = (given, given / "node_modules" / PACKAGE, given.parent.parent)
    package = next((place for place in candidates if _is_package(place)), None)
    if package is None:
        what = f"the npm package {PACKAGE}"
        raise ConfigError(f"{given} must be {what}, but holds no such package", hint=BY_HAND)
    about, path = _about(package), package / SCRIPT
    if about.get("name") != PACKAGE:
        found = f"the npm package {about.get('name')}"
        raise ConfigError(f"{given} must be {PACKAGE}, but is {found}", hint=BY_HAND)
    if not path.is_file():
        raise ConfigError(f"{package} has no {SCRIPT}: it was not built", hint=BY_HAND)
    return Script(path, str(about.get("version")), hashlib.sha256(path.read_bytes()).hexdigest())


def _is_package(place: Path) -> bool:
    return (place / "package.json").is_file() and (
        (place / SCRIPT).is_file() or _about(place).get("name") == PACKAGE
    )


def _about(package: Path) -> dict[str, object]:
    """What a package says of itself; nothing, where that cannot be read."""
    try:
        about = json.loads((package / "package.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return about if isinstance(about, dict) else {}


def _is_pinned(path: Path) -> bool:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() == SCRIPT_SHA256
    except OSError:
        return False


def _fetched() -> bytes:
    """The pinned script, out of the package as npm brings it."""
    npm = shutil.which("npm")
    if npm is None:
        raise TargetError(
            f"npm is not installed, which brings {PACKAGE}",
            hint=f"install Node.js; or, on another machine, {BY_HAND}",
        )
    with tempfile.TemporaryDirectory(prefix="mlc-compile-web-llm-") as room:
        _run_npm([npm, "pack", f"{PACKAGE}@{VERSION}", "--loglevel=error"], Path(room))
        packed = sorted(Path(room).glob("*.tgz"))
        if not packed:
            raise TargetError(f"npm brought no {PACKAGE} {VERSION}", hint=BY_HAND)
        _check_integrity(packed[0])
        with tarfile.open(packed[0]) as archive:
            member = archive.extractfile(f"package/{SCRIPT}")
            assert member is not None, f"{SCRIPT} is in the package of this integrity"
            return member.read()


def _run_npm(command: list[str], room: Path) -> None:
    """Run npm in `room`, where no project's settings are; TargetError with what it says."""
    try:
        done = subprocess.run(
            command,
            cwd=room,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
    except OSError as e:
        raise TargetError(f"{command[0]} does not start: {e.strerror}", hint=BY_HAND) from None
    if done.returncode == 0:
        return
    if "ENOSPC" in done.stderr:
        raise EnvironmentError_(
            f"npm could not fetch {PACKAGE}: no space left on device", hint="free some space"
        )
    lines = (NPM_LINE.match(line) for line in done.stderr.splitlines())
    words = next((line[1].strip() for line in lines if line), f"exit code {done.returncode}")
    raise TargetError(
        f"npm could not fetch {PACKAGE} {VERSION}: {words}",
        hint=f"check the network; or, on another machine, {BY_HAND}",
    )


def _check_integrity(packed: Path) -> None:
    digest = base64.b64encode(hashlib.sha512(packed.read_bytes()).digest()).decode()
    if f"sha512-{digest}" != INTEGRITY:
        raise DamageError(
            f"npm brought another {PACKAGE} {VERSION} than was published: its digest differs",
            hint="look at npm's registry setting (npm config get registry)",
        )


def _write_whole(path: Path, content: bytes) -> None:
    """Write a file that is there whole or not at all."""
    if path.is_dir():
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, aside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(aside).replace(path)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise
