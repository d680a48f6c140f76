"""Make tokens that were said before less likely: presence, frequency and repetition penalties.

    x -= presence + count · frequency, then x /= repetition if x > 0, else x *= repetition

in float32, as `penalize` in the kernels of the chat page does. Presence and frequency are
OpenAI's: `count` is of generated tokens, and a token that only the prompt has is left alone.
Repetition is CTRL's (arXiv 1909.05858) as transformers has it: of the prompt's tokens too.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Penalties:
    """Presence and frequency 0 and repetition 1 change nothing."""

    presence: float
    frequency: float
    repetition: float

    def __bool__(self) -> bool:
        """Whether they change anything."""
        return (self.presence, self.frequency, self.repetition) != (0, 0, 1)

    def apply(self, logits: Floats, said: Mapping[int, int]) -> Floats:
        """f32[vocab] from logits f32[vocab]; `said`: how often, by id, 0 where it was the prompt.

        `logits` stay as they are.
        """
        ids = np.fromiter(said, np.intp, len(said))
        count = np.fromiter(said.values(), np.float32, len(said))
        presence, frequency, repetition = map(
            np.float32, (self.presence, self.frequency, self.repetition)
        )
        x = logits[ids] - np.minimum(count, 1) * presence - count * frequency
        changed = logits.copy()
        changed[ids] = np.where(x > 0, x / repetition, x * repetition)
        return changed
