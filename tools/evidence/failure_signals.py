"""What a signal that ended a process means, and what it does not mean."""

import re
from dataclasses import dataclass

from ..domain.reports import Remedy


@dataclass(frozen=True)
class SignalCause:
    """One signal. `final`: it is the cause even if the logs hold other messages of that rank."""

    number: int | None
    name: str
    cause: str
    explanation: str
    remedies: tuple[Remedy, ...] = ()
    final: bool = False


def _keep(action: str) -> Remedy:
    return Remedy(action=action, changes_results=False)


_PREEMPTED = (
    "the job was asked to stop, as before a time limit or a preemption",
    (_keep("save a checkpoint when SIGTERM comes; torchrun kills 30 s later"), _keep("ask for more time")),
)
_SIGNALS = {
    cause.number: cause
    for cause in (
        SignalCause(
            1,
            "SIGHUP",
            "session_closed",
            "terminal/session closed; not a training error, and not out of memory",
            (_keep("start the job in a session of its own (forerun's supervisor does; else tmux or setsid)"),),
            final=True,
        ),
        SignalCause(2, "SIGINT", "interrupted", "the run was interrupted from a keyboard or by a tool", final=True),
        SignalCause(6, "SIGABRT", "aborted", "the process aborted itself, as after a failed check in native code"),
        SignalCause(
            7,
            "SIGBUS",
            "bus_error",
            "a bus error, most often a full /dev/shm or a memory-mapped file that was cut",
            (_keep("enlarge /dev/shm (docker: --shm-size)"), _keep("use fewer DataLoader workers")),
        ),
        SignalCause(
            9,
            "SIGKILL",
            "killed",
            "killed from outside, without an error of its own; this may be the kernel for want of memory, an "
            "administrator or a limit, and the signal alone does not tell",
            (_keep("look at the cgroup's memory.events (oom_kill) and the kernel log before calling it memory"),),
            final=True,
        ),
        SignalCause(11, "SIGSEGV", "segmentation_fault", "native code read or wrote outside its memory"),
        SignalCause(15, "SIGTERM", "preempted", *_PREEMPTED),
    )
}
_TIME_LIMIT = SignalCause(None, "time limit", "preempted", *_PREEMPTED)
_TEXT = re.compile(r"got signal: (\d{1,2})\b|Received (\d{1,2}) death signal")
_LIMIT = re.compile(r"DUE TO TIME LIMIT|DUE TO PREEMPTION")


def signal_cause(number: int) -> SignalCause | None:
    return _SIGNALS.get(number)


def signal_in_text(text: str) -> SignalCause | None:
    """The signal that an engine's or scheduler's message names; `Received 1 death signal` counts signals by number."""
    if _LIMIT.search(text):
        return _TIME_LIMIT
    match = _TEXT.search(text)
    return _SIGNALS.get(int(match[1] or match[2])) if match else None
