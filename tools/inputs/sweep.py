"""A sweep: several argument sets of one plan, each a full run of its own under one approval."""

import shlex
from collections.abc import Callable, Sequence

from runtime.config.plan import MOST_SWEEP_RUNS

from .notes import Notes

NO_SWEEP = ("none",)
ALLOWED = f"2 to {MOST_SWEEP_RUNS} different argument sets, each the text that is added to args"


def settle_sweep(
    texts: Sequence[str],
    arguments: tuple[str, ...],
    notes: Notes,
    settled: Callable[[tuple[str, ...], str], tuple[str, ...]],
) -> tuple[tuple[str, ...], ...]:
    """The whole arguments of each run; empty without a sweep, or if something is wrong with it.

    Args:
        texts: what each run adds to `arguments`, as in a shell.
        settled: checks arguments and makes them absolute; its second argument says which ones they are.
    """
    if not texts or tuple(texts) == NO_SWEEP:
        return ()
    if not 2 <= len(texts) <= MOST_SWEEP_RUNS:
        notes.error("bad_sweep", f"a sweep of {len(texts)} argument set(s)", ALLOWED)
        return ()
    members = []
    for number, text in enumerate(texts, start=1):
        try:
            added = tuple(shlex.split(text))
        except ValueError as error:
            notes.error("bad_sweep", f"sweep {number}, {text!r}: {error}", "quote it as in a shell")
            return ()
        members.append(settled((*arguments, *added), "args" if number == 1 else f"sweep {number}"))
    for number, member in enumerate(members, start=1):
        first = members.index(member) + 1
        if first != number:
            notes.error("bad_sweep", f"argument sets {first} and {number} of the sweep are the same", ALLOWED)
    return tuple(members)
