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
        SignalCause(
            4,
            "SIGILL",
            "illegal_instruction",
            "native code used an instruction that this processor does not have; a package was built for another",
            (_keep("install builds of the packages for this node's processor"),),
        ),
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
_BY_SCHEDULER = (
    (
        re.compile(r"DUE TO (?:TIME LIMIT|PREEMPTION)"),
        SignalCause(None, "time limit", "preempted", *_PREEMPTED),
    ),
    (
        re.compile(r"DUE TO NODE FAILURE"),
        SignalCause(
            None,
            "node failure",
            "node_failed",
            "the scheduler lost a node of the job; not an error of the training script",
            (_keep("resume from the last checkpoint on other nodes"),),
        ),
    ),
    (
        re.compile(r"\*\*\* (?:JOB|STEP) \S+ ON \S+ CANCELLED AT \S+ (?:DUE to SIGNAL \w+ )?\*\*\*"),
        SignalCause(None, "scancel", "cancelled_by_scheduler", "someone cancelled the job at the scheduler"),
    ),
)
_NUMBERED = re.compile(
    r"got signal: (\d{1,2})\b|Received (\d{1,2}) death signal|\bSignal (\d{1,2}) \(SIG\w+\) received by PID"
    r"|died with <Signals\.SIG\w+: (\d{1,2})>|^\s*exitcode\s*: -(\d{1,2}) \(pid"
)
# What a shell, srun or Python's fault handler says of a process that a signal ended.
_NAMED = re.compile(
    r"^(?:.{0,200}: line \d+: +\d+ |srun: error: \S+ tasks? [\d,-]+: |Fatal Python error: )?"
    r"(Segmentation fault|Illegal instruction|Bus error|Killed|Aborted|Hangup)(?=\s*\(core dumped\)|\s*$| {2,}\S)"
)
_NAMES = {"Segmentation fault": 11, "Bus error": 7, "Killed": 9, "Aborted": 6, "Hangup": 1, "Illegal instruction": 4}


def signal_cause(number: int) -> SignalCause | None:
    return _SIGNALS.get(number)


def signal_of_exit_code(code: int) -> int | None:
    """The signal behind a shell's exit code: 137 is 128 + 9; None for codes that scripts give themselves."""
    return code - 128 if code - 128 in _SIGNALS else None


def signal_in_text(text: str) -> SignalCause | None:
    """The signal that an engine's, a shell's or a scheduler's message names, by number or in words."""
    by_scheduler = next((cause for pattern, cause in _BY_SCHEDULER if pattern.search(text)), None)
    if by_scheduler:
        return by_scheduler
    if match := _NUMBERED.search(text):
        return _SIGNALS.get(int(next(filter(None, match.groups()))))
    named = _NAMED.match(text)
    return _SIGNALS[_NAMES[named[1]]] if named else None
