"""A build that dies, wherever it dies, leaves nothing that the next one would trust.

`MLC_COMPILE_RANDOM_KILLS=50` kills whole builds at so many random moments as well.
"""

import logging
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from mlc_compile.cache import Store
from mlc_compile.cache.check import check
from tests.conftest import ROOT
from tests.driver.stand_ins import HOME, contents
from tests.killing import RANDOM_KILLS, Victim

LOG = logging.getLogger(__name__)

# Where a build is killed: (module, function), and before which of its calls.
DEATHS = {
    "converting": ("mlc_compile.driver.convert", "write_proof", 1),
    "the first file goes into the cache": ("mlc_compile.cache.keep", "copy_in", 1),
    "a later file of the weights": ("mlc_compile.cache.keep", "copy_in", 4),
    "an entry is complete and not in place": ("mlc_compile.cache.keep", "sync", 14),
    "an entry is in place and not safe": ("mlc_compile.cache.keep", "sync", 15),
    "compiling": ("mlc_compile.driver.build", "compile_into", 1),
    "what the library asked goes into the cache": ("mlc_compile.cache.keep", "write_entry", 2),
    "what it asked is known, and it is not kept": ("mlc_compile.cache.keep", "write_entry", 3),
    "packing": ("mlc_compile.driver.build", "pack_weights", 1),
    "the packed weights go into the cache": ("mlc_compile.cache.keep", "write_entry", 4),
    "proving": ("mlc_compile.driver.prove", "ask", 1),
    "the log": ("mlc_compile.driver.build", "write_log", 1),
    "the output is swapped in": ("mlc_compile.staging.directory", "_replace", 2),
    "the stamps are saved": ("mlc_compile.driver.reuse", "Stamps.save", 1),
}

DIE = """
import importlib, os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from mlc_compile.cache import Store
from mlc_compile.driver.build import build
from mlc_compile.driver.reuse import Reuse
from mlc_compile.target import find_target
from tests.driver.stand_ins import install
compiled, code, model, cache, out, name, function, count = sys.argv[2:]
install(Path(compiled), Path(code), setattr, [])
owner, left = importlib.import_module(name), int(count)
*inside, function = function.split(".")
for part in inside:
    owner = getattr(owner, part)
real = getattr(owner, function)

def die(*args, **options):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*args, **options)

setattr(owner, function, die)
reuse = Reuse(Store(Path(cache)))
build(Path(model), (find_target("cpu"),), "q4f16_1", Path(out), reuse=reuse)
"""


@pytest.mark.parametrize("place", DEATHS)
def test_a_build_that_is_killed_leaves_nothing_that_the_next_would_trust(
    made, stub, nano, compiled, tmp_path, place
):
    made("expected", cache="another")
    paths = (compiled, tmp_path / "code", nano.path, tmp_path / "cache", tmp_path / "out")
    command = [sys.executable, "-c", DIE, ROOT, *paths, *DEATHS[place]]
    done = subprocess.run([str(word) for word in command], capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    built = made()
    assert built.notes == ()
    assert contents(tmp_path / "out") == contents(tmp_path / "expected")
    assert {p.name for p in (tmp_path / "out" / HOME).iterdir()} == {"weights", "cpu"}
    assert list((tmp_path / "cache" / "builds" / "1" / "scratch").iterdir()) == []
    assert made().artifacts[0].unchanged


@pytest.mark.slow
@pytest.mark.skipif(not RANDOM_KILLS, reason="MLC_COMPILE_RANDOM_KILLS says how often")
def test_a_build_that_is_killed_at_any_moment_is_finished_by_another(nano_checkpoint, tmp_path):
    """Killed again and again over one cache and output until it ends, and then from the start."""
    cache, out, temporary = (tmp_path / name for name in ("cache", "out", "tmp"))
    command = [sys.executable, "-m", "mlc_compile", "build", nano_checkpoint, "-o", out, "--json"]
    env = {"MLC_COMPILE_CACHE": str(cache), "TMPDIR": str(temporary)}
    draw, kills, longest, expected = random.Random(0), 0, 0.0, None
    temporary.mkdir()
    while expected is None or kills < RANDOM_KILLS:
        limit = draw.uniform(0, longest) if expected else None
        start = time.monotonic()
        with Victim(command, env=env) as victim:
            with suppress(subprocess.TimeoutExpired):
                victim.process.wait(limit)
            code = victim.process.poll()
            victim.kill()
            assert victim.left() == []
        if code is None:
            kills += 1
            store = Store(cache)
            assert [fault for _, fault in check(store) if fault is not None] == []
            store.collect(store.limit)
            assert not store.scratch.is_dir() or list(store.scratch.iterdir()) == []
            continue
        assert code == 0
        longest = longest or time.monotonic() - start
        expected = expected or contents(out)
        assert contents(out) == expected
        assert {p.name for p in (out / HOME).iterdir()} == {"weights", "cpu"}
        for path in (cache, out):
            shutil.rmtree(path)
    assert list(temporary.iterdir()) == []
    LOG.info("%d kills of a build of %.0f s", kills, longest)
