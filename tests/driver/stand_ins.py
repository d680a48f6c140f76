"""What is slow in a build, stood in for by what it once made: the compiler, the proof's replay."""

import shutil
from collections.abc import Callable
from pathlib import Path

from mlc_compile.artifact import MANIFEST, Check, Manifest, list_files, read_manifest
from mlc_compile.cache import Store
from mlc_compile.driver import build as module
from mlc_compile.driver import keys as keys_module
from mlc_compile.driver import prove as proving
from tests.driver.tuning import record

HOME = "nano-qwen3-q4f16_1"
PASS = Check(status="pass", max_abs_error=0.01, bound=0.1)
ASKED = (record().workload,)  # what the compiler that stands in looks for a record of


def install(compiled: Path, code: Path, put: Callable[..., None], ran: list[str]) -> None:
    """Put stand-ins into their modules with `put`; each step that runs adds its name to `ran`.

    Our code, which is part of the keys, becomes the directory `code`: nobody edits it meanwhile.
    """
    (code / "configs").mkdir(parents=True, exist_ok=True)
    (code / "passes.py").write_text("")
    convert_into, pack_weights = module.convert_into, module.pack_weights

    def compile_into(scratch, job, _clock):
        ran.append("library")
        shutil.copytree(compiled, scratch, dirs_exist_ok=True)
        (scratch / MANIFEST).unlink()
        manifest = module.replace(
            read_manifest(compiled, Manifest),
            limits=job.limits,
            weights_digest=None,
            files=list_files(scratch),
        )
        return manifest, {row.name: ASKED for row in job.target.libraries}

    def converted(*args, **options):
        ran.append("weights")
        return convert_into(*args, **options)

    def packed(*args):
        ran.append("packed")
        pack_weights(*args)

    def ask(*_args, **_options):
        ran.append("proof")
        return PASS

    put(module, "compile_into", compile_into)
    put(module, "convert_into", converted)
    put(module, "pack_weights", packed)
    put(proving, "ask", ask)
    put(keys_module, "PACKAGE", code)


def contents(out: Path) -> dict[str, bytes]:
    """All files but the logs, which hold times."""
    files = (p for p in out.rglob("*") if p.is_file() and p.name != "build-log.json")
    return {p.relative_to(out).as_posix(): p.read_bytes() for p in files}


def entries(cache: Path) -> dict[str, list[Path]]:
    """Level -> the files of its entry; of several the last by name."""
    found = {}
    for directory in Store(cache).directories():
        files = sorted(p for p in directory.rglob("*") if p.is_file())
        found[directory.parent.name] = files
    return found
