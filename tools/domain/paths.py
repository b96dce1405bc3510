"""Paths that come from outside: resolved first, then required to lie inside an allowed root."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import InvalidInput


@dataclass(frozen=True)
class AllowedRoots:
    """The directories in which an agent may name files (`forerun serve --root DIR`, repeatable); all resolved."""

    roots: tuple[Path, ...]

    @classmethod
    def of(cls, roots: Sequence[str | Path]) -> "AllowedRoots":
        """Resolve the roots; each must be an existing directory."""
        resolved = tuple(Path(r).expanduser().resolve() for r in roots)
        for root in resolved:
            if not root.is_dir():
                raise InvalidInput(f"root {root} is no directory", next_step="give an existing directory to --root")
        return cls(resolved)

    def resolve(self, text: str, *, what: str = "path") -> Path:
        """The absolute, symlink-free path for `text`, relative ones taken from the first root.

        Raises:
            InvalidInput: the path has a NUL byte or leads outside every root.
        """
        if not text or "\0" in text:
            raise InvalidInput(
                f"{what} {text!r} is empty or holds a NUL byte", allowed="a path inside the allowed roots"
            )
        path = Path(text).expanduser()
        resolved = (path if path.is_absolute() else self.roots[0] / path).resolve()
        if any(resolved == root or root in resolved.parents for root in self.roots):
            return resolved
        raise InvalidInput(
            f"{what} {text!r} leads to {resolved}, outside the allowed roots",
            allowed=", ".join(str(r) for r in self.roots),
            next_step="name a file inside a root, or ask the user to restart the server with another --root",
        )
