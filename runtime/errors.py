"""Errors that people and agents can act on: what was wrong, what is allowed, what to do next."""


class ForerunError(Exception):
    """The root of every error that forerun raises on purpose.

    Args:
        what: what was wrong, with the value that was seen.
        allowed: what would have been right; empty if nothing general can be said.
        next_step: the next action for the reader.
    """

    code = "forerun_error"

    def __init__(self, what: str, *, allowed: str = "", next_step: str = "") -> None:
        self.what = what
        self.allowed = allowed
        self.next_step = next_step
        super().__init__(what)

    def __str__(self) -> str:
        parts = [self.what.rstrip(".") + "."]
        if self.allowed:
            parts.append(f"Allowed: {self.allowed.rstrip('.')}.")
        if self.next_step:
            parts.append(f"Next: {self.next_step.rstrip('.')}.")
        return " ".join(parts)


class ConfigurationError(ForerunError):
    """A setting, an argument or a configuration file is wrong, or two of them contradict each other."""

    code = "configuration"


class UsageError(ForerunError):
    """The training script uses the runtime in an order or way that cannot work."""

    code = "usage"


class BatchSizeSignatureError(UsageError, TypeError):
    """A function under find_executable_batch_size does not take the batch size first, or is given one by its caller."""


class NoExecutableBatchSizeError(ForerunError, RuntimeError):
    """Not even the smallest batch fits into memory."""

    code = "no_executable_batch_size"


class NonFiniteGradientsError(ForerunError, RuntimeError):
    """Gradients are NaN or infinite, and clip_grad_norm_ was asked to say so."""

    code = "nonfinite_gradients"


class StateResetError(UsageError, AttributeError):
    """A state object is used after the process's state was reset."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"`{name}` object has no attribute that says who and where this process is. This happens if "
            f"`{name}._reset_state()` was called after the object was made",
            next_step="make a new Accelerator or PartialState after the reset",
        )


class DistributedError(ForerunError):
    """Ranks disagree, or one of them did not come to a collective."""

    code = "distributed"


class DistributedOperationException(DistributedError):
    """What the ranks bring to a collective does not fit together."""


class NotInThisVersionError(ForerunError, ImportError):
    """A name of the Accelerate API that this version does not have."""

    code = "not_in_this_version"


class AbsentAttributeError(ForerunError, AttributeError):
    """An attribute of the Accelerate API that this version does not have."""

    code = "not_in_this_version"


class CheckpointError(ForerunError):
    """A checkpoint cannot be written, or is incomplete, damaged or foreign."""

    code = "checkpoint"


class RecordError(ForerunError):
    """A record file holds what no writer of ours writes."""

    code = "record"


class LaunchError(ForerunError):
    """A job cannot be started, or its run directory is not what was approved."""

    code = "launch"


class MissingDependencyError(ForerunError):
    """An optional package is needed and not installed."""

    code = "missing_dependency"
