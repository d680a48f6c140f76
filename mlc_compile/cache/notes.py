"""What goes wrong with a store, in sentences for people."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from mlc_compile.cache.key import Entry, Key


@dataclass(slots=True)
class Notes:
    """The sentences are `lines`, in the order of what happened."""

    lines: list[str] = field(default_factory=list)
    unkept: dict[str, list[Entry]] = field(default_factory=dict)  # by the reason
    faults: dict[str, str] = field(default_factory=dict)  # by the digest of a key

    def tell_damage(self, key: Key, note: str) -> None:
        """Note why an entry of `key` does not serve."""
        self.faults[key.digest] = note
        self.lines.append(note)

    def tell_unkept(self, entry: Entry, why: str) -> None:
        """One note speaks of all entries that were not kept for one reason."""
        before = self.unkept.setdefault(why, [])
        old = _unkept(before, why)
        before.append(entry)
        if old in self.lines:
            self.lines.remove(old)
        self.lines.append(_unkept(before, why))


def _unkept(entries: Sequence[Entry], why: str) -> str:
    """The note that `entries` were not kept; "" for none."""
    if not entries:
        return ""
    most = max(entry.nbytes for entry in entries)
    what = f"the {entries[0].key.level} entry takes {most:,} bytes"
    if len(entries) > 1:
        what = f"{len(entries)} entries take up to {most:,} bytes each"
    return f"{what}, {why}"
