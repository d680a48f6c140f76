"""Locks: one holder, none after a death, and a file that vanishes meanwhile."""

import signal
import subprocess
import sys
import threading

from mlc_compile.staging.lock import acquire, release, try_lock

HOLD = """
import sys, time
from pathlib import Path
from mlc_compile.staging.lock import acquire
acquire(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(600)
"""


def test_one_holds_it_at_a_time(tmp_path):
    path = tmp_path / "lock"
    handle = acquire(path)
    assert acquire(path, wait=False) is None
    release(handle)
    with try_lock(path) as free:
        assert free
        with try_lock(path) as again:
            assert not again


def test_a_killed_holder_blocks_nobody(tmp_path):
    path = tmp_path / "lock"
    holder = subprocess.Popen([sys.executable, "-c", HOLD, path], stdout=subprocess.PIPE, text=True)
    with holder:
        assert holder.stdout.readline() == "held\n"
        assert acquire(path, wait=False) is None
        holder.send_signal(signal.SIGKILL)
    release(acquire(path))


def test_who_waits_for_a_file_that_is_removed_locks_its_successor(tmp_path):
    path = tmp_path / "lock"
    first = acquire(path)
    got = []
    waiter = threading.Thread(target=lambda: got.append(acquire(path)))
    waiter.start()
    path.unlink()
    successor = acquire(path)  # others go on with a new file
    release(first)
    waiter.join(0.2)
    assert got == []  # it did not take the unlinked file for the lock
    release(successor)
    waiter.join(60)
    assert acquire(path, wait=False) is None
    release(got[0])
