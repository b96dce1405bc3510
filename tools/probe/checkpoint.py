"""Does a checkpoint load? Asked of the plan's own interpreter; nothing in it is unpickled beyond tensors."""

from collections.abc import Mapping
from pathlib import Path

from .asking import NoAnswer, ask

_TIMEOUT_S = 300.0


def checkpoint_problem(python: str, path: Path, *, environment: Mapping[str, str] | None = None) -> str | None:
    """None if the checkpoint loads, else why not.

    A file is a safetensors file or what torch.save wrote (weights_only). A directory is our runtime's (every file as
    its manifest says), a torch.distributed.checkpoint, or holds such files: all must be whole, one must hold tensors.
    """
    try:
        answer = ask(python, "checkpoint", {"path": str(path)}, timeout_s=_TIMEOUT_S, environment=environment)
    except NoAnswer as error:
        return f"the checkpoint could not be tried: {error}"
    problem: str | None = answer["problem"]
    return problem
