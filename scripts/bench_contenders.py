"""The engines that bench_rivals.py measures: how each is called, and how its answer reads.

Each is a program of its own. All are asked the same: prompts of some lengths, then some tokens
decoded, with a filled cache if that is wanted, on a number of threads.
"""

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench_table import Figures
from mlc_compile.artifact import KVDtype, Manifest
from mlc_compile.runtime.memory import bytes_per_token

HERE: Final = Path(__file__).parent

# What llama.cpp and OpenVINO call a cache of as many bytes a number as one of ours.
LLAMA_KV: Final[dict[KVDtype, str]] = {"float16": "f16", "float32": "f32", "int8": "q8_0"}
OPENVINO_KV: Final[dict[KVDtype, str]] = {"float16": "f16", "float32": "f32", "int8": "u8"}


@dataclass(frozen=True, slots=True)
class Setting:
    """What all contenders of a turn measure; all but `threads` in tokens."""

    prompts: tuple[int, ...]
    generate: int  # 0: nothing is decoded
    depth: int  # tokens already in the cache
    threads: int

    def column(self, test: str) -> str:
        """`pp512` (a prompt) -> `pp512 t2`, `tg64` (decoding) -> `tg64 d4096 t1`."""
        depth = f" d{self.depth}" if self.depth else ""
        return f"{test}{depth} t{self.threads}"


@dataclass(frozen=True, slots=True)
class Answer:
    """What one contender measured in one turn."""

    figures: Figures
    weights_bytes: int
    bytes_per_token: Mapping[str, int] = field(default_factory=dict)  # by column of decoding


@dataclass(frozen=True, slots=True)
class Contender:
    """An engine with a model; `run` measures and raises Failed."""

    name: str
    run: Callable[[Setting], Answer]
    is_ours: bool = False


class Failed(Exception):
    """Why a contender cannot be measured, as half a sentence that follows its name."""


@dataclass(frozen=True, slots=True)
class Ours:
    """An artifact of ours, and the words that call the program which measures it."""

    tool: tuple[str, ...]
    artifact: Path
    manifest: Manifest

    def measure(self, setting: Setting) -> Answer:
        """Speeds by `mlc-compile bench`, and what a decoded token reads: weights and cache."""
        prompts = setting.prompts or (1,)  # it measures at least one
        command = [*self.tool, "bench", str(self.artifact), "--json", "--quiet", "--repeats", "1"]
        command += ["--prompt-tokens", ",".join(map(str, prompts))]
        command += ["--gen-tokens", str(setting.generate), "--depth", str(setting.depth)]
        results = ask([*command, "--threads", str(setting.threads)])["results"]
        figures = {setting.column(_test(r)): r["tok_s"] for r in results}
        asked = [f"pp{n}" for n in setting.prompts] + [f"tg{setting.generate}"]
        columns = {setting.column(test) for test in asked}
        return Answer(
            {column: tok_s for column, tok_s in figures.items() if column in columns},
            self.manifest.plan.nbytes,
            dict(self._reads(setting)),
        )

    def _reads(self, setting: Setting) -> Iterator[tuple[str, int]]:
        """Bytes a token, in the middle of decoding; a GPU reads from a memory of its own."""
        if setting.generate and self.manifest.on_host:
            middle = setting.depth + setting.generate // 2
            column = setting.column(f"tg{setting.generate}")
            yield column, bytes_per_token(self.manifest, middle)


def _test(result: Mapping[str, Any]) -> str:
    return f"{'tg' if result['phase'] == 'decode' else 'pp'}{result['tokens']}"


def llama(program: str, gguf: Path, kv: KVDtype) -> Contender:
    """llama.cpp's llama-bench with one of its files."""
    _require_file(gguf)
    _require_program(program)
    # A long cache is as large as ours, and read by flash attention, which is faster there; with a
    # short one it is the slower way, and the cache's type makes no difference.
    deep = ["-fa", "1", "-ctk", LLAMA_KV[kv], "-ctv", LLAMA_KV[kv]]

    def run(setting: Setting) -> Answer:
        prompts = ",".join(map(str, setting.prompts)) or "0"
        command = [program, "-m", str(gguf), "-p", prompts, "-n", str(setting.generate)]
        command += ["-t", str(setting.threads), "-d", str(setting.depth)]
        command += deep if setting.depth else ["-fa", "0"]
        results = ask([*command, "-r", "1", "-o", "json"])
        return Answer(dict(_llama_figure(r, setting) for r in results), results[0]["model_size"])

    return Contender(f"llama.cpp {gguf.stem}", run)


def _llama_figure(result: Mapping[str, Any], setting: Setting) -> tuple[str, float]:
    prompt = result["n_prompt"]
    test = f"pp{prompt}" if prompt else f"tg{result['n_gen']}"
    return setting.column(test), result["avg_ts"]


def openvino(python: str, model: Path, kv: KVDtype) -> Contender:
    """OpenVINO GenAI with an exported model; a long cache is as large as ours."""
    _require_file(model / "openvino_model.bin")
    _require_module(python, "openvino_genai")
    child = _child(python, "bench_openvino.py", model, OPENVINO_KV[kv])
    return Contender(f"OpenVINO {model.name}", child)


def tvm_default(python: str, checkpoint: Path) -> Contender:
    """Plain TVM, by the passes that `tvm.compile` has for a CPU."""
    _require_file(checkpoint / "config.json")
    _require_module(python, "tvm")
    return Contender("TVM default, float32", _child(python, "bench_tvm_default.py", checkpoint))


def _child(python: str, script: str, model: Path, *more: str) -> Callable[[Setting], Answer]:
    """A script beside this one that prints {"figures": {"pp512": tok/s}, "weights_bytes": n}."""

    def run(setting: Setting) -> Answer:
        prompts = ",".join(map(str, setting.prompts))
        numbers = map(str, (setting.generate, setting.depth, setting.threads))
        raw = ask([python, str(HERE / script), str(model), prompts, *numbers, *more])
        figures = {setting.column(test): tok_s for test, tok_s in raw["figures"].items()}
        return Answer(figures, raw["weights_bytes"])

    return run


def ask(command: Sequence[str]) -> Any:
    """What a command prints, decoded; Failed with the last line of its stderr if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as e:
        raise Failed(f"{command[0]} cannot be run: {(e.strerror or str(e)).lower()}") from e
    if done.returncode:
        raise Failed(f"{Path(command[0]).name} fails: {_last_line(done.stderr)}")
    try:
        return json.loads(done.stdout)
    except ValueError as e:
        raise Failed(f"{Path(command[0]).name} does not answer in JSON") from e


def _last_line(stderr: str) -> str:
    """Our own programs tell an error as JSON."""
    last = (stderr.strip().splitlines() or ["it says nothing"])[-1]
    try:
        return str(json.loads(last)["error"])
    except (ValueError, KeyError, TypeError):
        return last


def _require_file(path: Path) -> None:
    if not path.is_file():
        raise Failed(f"there is no file {path}")


def _require_program(program: str) -> None:
    if shutil.which(program) is None:
        raise Failed(f"there is no program {program}")


def _require_module(python: str, module: str) -> None:
    _require_program(python)
    find = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    if subprocess.run([python, "-c", find], capture_output=True, check=False).returncode:
        raise Failed(f"{python} has no {module}")
