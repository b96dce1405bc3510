"""Losses from lines of plain text: those that name a step or an epoch and a loss, both with a number.

`step 7 loss=0.5`, `[3/100] iter: 40, train_loss: 1.2e-1` and `epoch 2 val_loss nan` count. A number must end where a
number can end: `0.5%`, `1,234` and the cut-off end of a line that is still being written are not trusted.
"""

import re
from collections.abc import Iterator

from runtime.records import MetricRecord

from .metric_values import UNKNOWN_TIME, number_in_text

_STEP = re.compile(
    r"(?<![\w.\-])(?:global[_ ]?step|step|iteration|iter)\b\s{0,3}[:=#]?\s{0,3}[\[(]?(\d{1,12})(?![.,]?\w)", re.I
)
_EPOCH = re.compile(r"(?<![\w.\-])epoch\b\s{0,3}[:=#]?\s{0,3}[\[(]?\d{1,9}", re.I)
_LOSS = re.compile(
    r"(?<![\w./\-])((?:[A-Za-z][A-Za-z0-9]{0,30}[_/.\-]){0,4}[A-Za-z]{0,30}loss)\b\s{0,3}[:=]?\s{0,3}"
    r"([-+]?(?:\d+\.?\d*(?:e[-+]?\d{1,3})?|\.\d+(?:e[-+]?\d{1,3})?|nan|inf(?:inity)?))(?![.,]?\w|%)",
    re.IGNORECASE,
)


def metrics_in_text(text: str, *, rank: int, complete: bool) -> Iterator[MetricRecord]:
    """The losses in one line.

    Args:
        complete: whether the line has ended; if not, a number at its very end may lack digits and is left out.
    """
    if "loss" not in text.lower():
        return
    step = _STEP.search(text)
    if step is None and _EPOCH.search(text) is None:
        return
    for match in _LOSS.finditer(text):
        value = number_in_text(match[2])
        if value is not None and (complete or match.end() < len(text)):
            yield MetricRecord(int(step[1]) if step else None, match[1], value, rank, UNKNOWN_TIME, origin="adapter")
