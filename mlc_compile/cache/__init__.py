"""The build cache: what was made from which inputs, kept by content, so that it is made once.

    CACHE/builds/<format>/
      entries/<level>/<digest of the key>/entry.json   the key in words, the files with digests
                                          files/...    what was made
      locks/     one per key that somebody works on
      scratch/   entries on their way in
      stamps.json   digests of files seen before, by size, times and inode

An entry appears by one rename, after its bytes have reached the disk; each file is compared
with its digest as it is read. Whatever is wrong with the cache costs time, never a build.
"""

from mlc_compile.cache.key import Entry, Key, Level
from mlc_compile.cache.stamps import Stamps
from mlc_compile.cache.store import DEFAULT_LIMIT, Store

__all__ = ["DEFAULT_LIMIT", "Entry", "Key", "Level", "Stamps", "Store"]
