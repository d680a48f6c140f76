"""What is served: an address for each file of the page and of one artifact, and no other.

The artifact's addresses hold the digest of its build, so browsers may keep for good what they
find there, and never mix two builds. The page and what it is told are asked for every time.
"""

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec

from mlc_compile.artifact import MANIFEST, File, Manifest, read_manifest
from mlc_compile.cache import Stamps
from mlc_compile.errors import ConfigError, DamageError, TargetError, listing
from mlc_compile.web.needs import LEAST, required_features, required_limits
from mlc_compile.web.web_llm import PACKAGE, Script

PAGE: Final = Path(__file__).parent / "page"
ABOUT: Final = "/artifact.json"  # what the page is told of the artifact
RESOLVED: Final = "resolve/main/"  # web-llm appends it to a model's address
KEPT: Final = "public, max-age=31536000, immutable"
ASKED: Final = "no-cache"  # kept, but asked for each time whether it is still so
WEIGHTS: Final = ".bin"

MEDIA_TYPES: Final = {
    ".bin": "application/octet-stream",
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".wasm": "application/wasm",
}
OTHER_MEDIA: Final = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class Resource:
    """What one address gives: a file as it was when the server started, or bytes."""

    media_type: str
    etag: str  # with its quotes
    nbytes: int
    cache_control: str
    source: Path | bytes
    mark: tuple[int, ...] = ()  # of a file: what `mark_of` said

    @classmethod
    def of_file(cls, path: Path, sha256: str, cache_control: str) -> "Resource":
        """A file whose digest is known."""
        seen = path.stat()
        media_type = MEDIA_TYPES.get(path.suffix, OTHER_MEDIA)
        return cls(media_type, f'"{sha256}"', seen.st_size, cache_control, path, mark_of(seen))

    @classmethod
    def of_bytes(cls, content: bytes, suffix: str) -> "Resource":
        """Bytes that are asked for each time."""
        etag = f'"{hashlib.sha256(content).hexdigest()}"'
        return cls(MEDIA_TYPES[suffix], etag, len(content), ASKED, content)


class Downloads(msgspec.Struct, frozen=True):
    """How much the page fetches, in bytes."""

    library: int
    weights: int
    rest: int  # tokenizer and settings


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What the page is told; `address` and the like are of this server."""

    model: str
    quant: str
    target: str
    context: int  # tokens
    build: str  # the digest of the build
    address: str  # of the model, without RESOLVED
    library: str
    web_llm: str
    web_llm_version: str
    features: tuple[str, ...]  # WebGPU's names
    limits: dict[str, int]  # likewise, the least of each
    web_llm_limits: dict[str, int]  # the least for any artifact
    nbytes: Downloads


@dataclass(frozen=True, slots=True)
class Site:
    """All addresses."""

    about: About
    resources: Mapping[str, Resource]


def read_page_manifest(directory: Path) -> Manifest:
    """The manifest of an artifact that a page can run.

    Raises as `read_manifest`; TargetError for an artifact that is for something else than
    browsers, ConfigError for a library without weights.
    """
    manifest = read_manifest(directory, Manifest)
    if not manifest.versions.web_llm:
        raise TargetError(
            f"{directory} is for target {manifest.target!r}, which no browser runs",
            hint="build the model with --target webgpu",
        )
    if manifest.weights_digest is None:
        raise ConfigError(
            f"{directory} holds a library without weights",
            hint=f"run `mlc-compile build MODEL --target {manifest.target}` to get both",
        )
    return manifest


def open_site(directory: Path, manifest: Manifest, script: Script, stamps: Stamps) -> Site:
    """The site of an artifact, once every file was found to be as its manifest says.

    DamageError if a file is missing, changed, or leads out of the directory.
    """
    for file in manifest.files:
        _check_file(directory, file, stamps)
    about = _about(directory, manifest, script)
    resources = {
        ABOUT: Resource.of_bytes(msgspec.json.encode(about), ".json"),
        about.web_llm: Resource.of_file(script.path, script.sha256, KEPT),
        **dict(_page()),
        **{
            f"{about.address}{RESOLVED}{quote(file.path)}": Resource.of_file(
                directory / file.path, file.sha256, KEPT
            )
            for file in manifest.files
        },
    }
    return Site(about, resources)


def mark_of(seen: os.stat_result) -> tuple[int, ...]:
    """What changes when somebody writes a file, or puts another in its place."""
    return (seen.st_size, seen.st_mtime_ns, seen.st_ino, seen.st_dev)


def _check_file(directory: Path, file: File, stamps: Stamps) -> None:
    path = directory / file.path
    try:
        inside = path.resolve().is_relative_to(directory.resolve())
    except (OSError, RuntimeError):  # a loop of links
        inside = False
    if not inside:
        raise DamageError(f"{path} leads out of the artifact", hint="rebuild the artifact")
    if not path.is_file():
        raise DamageError(f"{path} is missing", hint="rebuild the artifact")
    path.open("rb").close()  # who may not read it is told so, not that it was changed
    if not stamps.matches(path, file.sha256):
        raise DamageError(f"{path} is not as mlc-compile wrote it", hint="rebuild the artifact")


def _about(directory: Path, manifest: Manifest, script: Script) -> About:
    if len(manifest.libraries) != 1:
        names = listing(library.path for library in manifest.libraries)
        raise DamageError(f"{directory} must have one library for pages, but has {names}")
    build = hashlib.sha256((directory / MANIFEST).read_bytes()).hexdigest()[:16]
    words = f"{manifest.model}-{manifest.quant}-{manifest.target}"
    # Letters that no address needs to quote: browsers and web-llm would not agree how.
    address = f"/model/{re.sub(r'[^A-Za-z0-9._-]', '-', words)}/{build}/"
    library = manifest.libraries[0].path
    return About(
        model=manifest.model,
        quant=manifest.quant,
        target=manifest.target,
        context=manifest.limits.context,
        build=build,
        address=address,
        library=f"{address}{RESOLVED}{library}",
        web_llm=f"/web-llm/{script.sha256[:16]}/index.js",
        web_llm_version=f"{PACKAGE} {script.version}",
        features=required_features(manifest),
        limits=required_limits(manifest),
        web_llm_limits=LEAST,
        nbytes=_downloads(manifest, library),
    )


def _downloads(manifest: Manifest, library: str) -> Downloads:
    fetched = {file.path: file.nbytes for file in manifest.files}
    own = fetched.pop(library, 0)
    weights = sum(size for name, size in fetched.items() if name.endswith(WEIGHTS))
    text = sum(size for name, size in fetched.items() if name.startswith(("tokenizer", "mlc-")))
    return Downloads(own, weights, text)


def _page() -> Iterator[tuple[str, Resource]]:
    for path in sorted(PAGE.iterdir()):
        if path.suffix in MEDIA_TYPES:
            name = "" if path.name == "index.html" else path.name
            yield f"/{name}", Resource.of_bytes(path.read_bytes(), path.suffix)
