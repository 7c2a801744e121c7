"""Functions that are timed in one process, in turns, so that other load on the machine shows in all of them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping

from record import clock


def take_turns(
    functions: Mapping[str, Callable[[], object]], rounds: int, *, repeats: int = 1
) -> dict[str, dict[str, float]]:
    """Time functions round by round, and print the table.

    In its turn each runs once untimed and then ``repeats`` times. The times are those of :func:`record.clock`.

    Args:
        functions: By name; the first one is the reference.
        rounds: How often all take turns, after one round that is not counted.
        repeats: Timed runs of a turn.

    Returns:
        For every function ``milliseconds`` of a run, the median over the rounds; ``lower_quartile_milliseconds``; and
        ``ratio``, that of its median to the reference's.
    """
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for number in range(rounds + 1):
        for name, function in functions.items():
            function()
            begin = clock()
            for _ in range(repeats):
                function()
            if number:
                seconds[name].append((clock() - begin) / repeats)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    reference = next(iter(medians.values()))
    found = {}
    for name, times in seconds.items():
        found[name] = {
            "milliseconds": round(1e3 * medians[name], 4),
            "lower_quartile_milliseconds": round(1e3 * statistics.quantiles(times)[0], 4),
            "ratio": round(medians[name] / reference, 3),
        }
        print(f"  {name:34}{found[name]['milliseconds']:12.3f} ms{found[name]['ratio']:9.2f}", flush=True)
    return found
