"""Whether two artifacts of one model compute the same: on a device, and on this CPU.

`python -m mlc_compile.bench.agreement DEVICE CPU` prints an `Agreement` as JSON. The CPU
continues the proof's prompt with the likeliest tokens; the device then gets the same tokens,
whatever it would have said itself (teacher forcing), so that one near tie does not end the
comparison. It reads them twice: as a prompt, and one at a time, since these run different
kernels.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from mlc_compile.artifact import PROOF
from mlc_compile.bench.child import serve
from mlc_compile.bench.device_bandwidth import copy_bandwidth
from mlc_compile.bench.verify import allowed_share, read_proof
from mlc_compile.errors import ConfigError
from mlc_compile.runtime.engine import Engine, start_engine
from mlc_compile.runtime.load import Loadable, check_artifact

Floats = npt.NDArray[np.float32]

TOKENS: Final = 128  # that the CPU adds to the prompt


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """Logits of a device against the CPU's, n positions of them.

    A token is decided where the CPU's best logit leads by more than two bounds: each of the
    two may be off by one.
    """

    max_abs_error: float
    decided: int  # positions
    same: int  # of the decided, those where the device prefers the same token

    def within(self, bound: float) -> bool:
        """Whether no logit is off by more than `bound` and no decided token differs."""
        return self.max_abs_error <= bound and self.same == self.decided


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """How far a device is from the CPU, as a prompt and token by token."""

    tokens: int
    bound: float  # the most that a logit may be off
    prompt: Difference
    decode: Difference
    agree: bool
    copy_bytes_s: float | None = None  # of device memory, reads and writes both counted


def compare_artifacts(device: Path, cpu: Path) -> Agreement:
    """Compare two artifacts that are built of one checkpoint.

    Raises ConfigError where they are not, and what loading raises.
    """
    ours, theirs = check_artifact(device), check_artifact(cpu)
    _check(ours, theirs)
    prompt, _ = read_proof(cpu / PROOF)
    share = max(allowed_share(one.manifest) for one in (ours, theirs))
    found = compare_engines(start_engine(ours), start_engine(theirs), prompt, share)
    speed = copy_bandwidth(ours.manifest.backend)
    return msgspec.structs.replace(found, copy_bytes_s=speed)


def compare_engines(
    device: Engine, cpu: Engine, prompt: Sequence[int], share: float, tokens: int = TOKENS
) -> Agreement:
    """Continue `prompt` by at most `tokens`, as the contexts allow, and compare all logits.

    `share` is the bound's part of the largest logit.
    """
    room = min(device.limits.context, cpu.limits.context)
    ids = greedy(cpu, list(prompt)[:room], tokens, room)
    expected = scored(cpu, ids)
    bound = share * float(np.abs(expected).max())
    as_prompt = compare(scored(device, ids), expected, bound)
    one_by_one = compare(decoded(device, ids), expected, bound)
    return Agreement(
        tokens=len(ids),
        bound=bound,
        prompt=as_prompt,
        decode=one_by_one,
        agree=as_prompt.within(bound) and one_by_one.within(bound),
    )


def compare(got: Floats, expected: Floats, bound: float) -> Difference:
    """f32[n, vocab] logits against expected ones."""
    second, best = np.partition(expected, -2, axis=1)[:, -2:].T
    decided = best - second > 2 * bound
    same = got.argmax(axis=1) == expected.argmax(axis=1)
    return Difference(
        max_abs_error=float(np.abs(got - expected).max()),
        decided=int(decided.sum()),
        same=int((decided & same).sum()),
    )


def greedy(engine: Engine, prompt: list[int], tokens: int, room: int) -> list[int]:
    """`prompt` and the likeliest `tokens` after it, `room` in all at most."""
    engine.rewind()
    ids, logits = prompt, engine.prefill(prompt)
    while len(ids) < min(room, len(prompt) + tokens):
        ids = [*ids, int(logits.argmax())]
        logits = engine.decode(ids[-1])
    return ids


def scored(engine: Engine, ids: Sequence[int]) -> Floats:
    """f32[n, vocab]: the logits after each id, read as a prompt."""
    engine.rewind()
    return np.concatenate([np.array(rows) for rows in engine.score(ids)])


def decoded(engine: Engine, ids: Sequence[int]) -> Floats:
    """f32[n, vocab]: the logits after each id, read one at a time."""
    engine.rewind()
    return np.stack(
        [np.array(engine.prefill(ids[:1])), *(np.array(engine.decode(i)) for i in ids[1:])]
    )


def _check(device: Loadable, cpu: Loadable) -> None:
    """ConfigError unless both are of the same weights in the same scheme."""
    pairs = [(one.manifest.model, one.manifest.quant) for one in (device, cpu)]
    if pairs[0] != pairs[1] or device.manifest.vocab_size != cpu.manifest.vocab_size:
        raise ConfigError(
            f"{device.directory} and {cpu.directory} are not of one model and scheme",
            hint="build both with one command: --target cuda-sm90,cpu",
        )


def _main() -> Agreement:
    if len(sys.argv) != 3:
        raise ConfigError("two artifacts are needed", hint="give the device's, then the CPU's")
    return compare_artifacts(Path(sys.argv[1]), Path(sys.argv[2]))


if __name__ == "__main__":
    serve(_main)
