"""Fit the cost model and predict: a `Question` a line in, `Predicted` out.

Run by `tune.cost_model` as `python -m mlc_compile.tune.cost_worker`.
"""

from functools import lru_cache
from typing import Any, Final

import msgspec

from mlc_compile.tune.worker import serve

MODULE: Final = "mlc_compile.tune.cost_worker"
THREADS: Final = 2
ROUNDS: Final = 100
TREES: Final = {
    "objective": "reg:squarederror",
    "max_depth": 6,
    "eta": 0.15,
    "min_child_weight": 1.0,
    "subsample": 0.9,
    "nthread": THREADS,
    "tree_method": "exact",
    "verbosity": 0,
}


class Question(msgspec.Struct, frozen=True):
    """Learn `labels` from `rows`, then say what `asked` would be; columns are alike."""

    rows: tuple[tuple[float, ...], ...]
    labels: tuple[float, ...]
    asked: tuple[tuple[float, ...], ...]
    seed: int


class Predicted(msgspec.Struct, frozen=True):
    """A label for each row asked."""

    costs: tuple[float, ...]


def predict(question: Question) -> Predicted:
    """Fit and predict; the same question has the same answer."""
    import numpy as np
    import xgboost

    trees = _fitted(question.rows, question.labels, question.seed)
    costs = trees.predict(xgboost.DMatrix(np.array(question.asked)))
    return Predicted(tuple(map(float, costs)))


@lru_cache(maxsize=1)  # a round asks about several generations
def _fitted(rows: tuple[tuple[float, ...], ...], labels: tuple[float, ...], seed: int) -> Any:
    import numpy as np
    import xgboost

    learnt = xgboost.DMatrix(np.array(rows), np.array(labels))
    return xgboost.train({**TREES, "seed": seed}, learnt, ROUNDS)


def main() -> None:
    """Load what fits before the first question, then answer."""
    import xgboost

    del xgboost
    serve(Question, predict)


if __name__ == "__main__":
    main()
