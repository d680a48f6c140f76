"""How things get on disk whole: written beside their place, and renamed once the disk has them.

A reader sees the old or the new, never half of either, after a power cut too.
"""

from mlc_compile.staging.directory import refuse_foreign, staged
from mlc_compile.staging.file import delete, replaced, sync

__all__ = ["delete", "refuse_foreign", "replaced", "staged", "sync"]
