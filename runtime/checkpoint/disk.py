"""Every operation by which a checkpoint changes the file system, so that each of them can be made to fail."""

import contextlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

Buffer = bytes | memoryview
_MOST_PIECES = 512  # of one pwritev; the system allows 1024


class Disk:
    """The real one. All methods raise OSError."""

    def make_directory(self, path: Path) -> None:
        os.mkdir(path, 0o755)

    def create(self, path: Path) -> int:
        """A new file's descriptor, for writing."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)

    def write(self, descriptor: int, pieces: Sequence[Buffer], offset: int) -> None:
        """Write all pieces one after another from `offset` on."""
        rest: Sequence[Buffer] = pieces if len(pieces) <= _MOST_PIECES else [b"".join(pieces)]
        size = sum(len(piece) for piece in rest)
        written = os.pwritev(descriptor, rest, offset) if size else 0
        while written < size:
            # A write may be cut short, by a signal or by the last free block; the next one says which.
            whole = memoryview(b"".join(rest))
            written += os.pwritev(descriptor, [whole[written:]], offset + written)

    def begin_writeback(self, descriptor: int, offset: int, size: int) -> None:
        """Let the system start to write these bytes to the device, so that fsync has less to wait for."""
        with contextlib.suppress(OSError):
            os.posix_fadvise(descriptor, offset, size, os.POSIX_FADV_DONTNEED)

    def fsync(self, descriptor: int) -> None:
        os.fsync(descriptor)

    def fsync_file(self, path: Path) -> None:
        """Make a file safe that somebody else wrote."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.fsync(descriptor)
        finally:
            os.close(descriptor)

    def fsync_directory(self, path: Path) -> None:
        """Make a rename in this directory survive a power cut."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        os.replace(source, target)

    def write_file(self, path: Path, content: bytes) -> None:
        """A new file, fsynced."""
        descriptor = self.create(path)
        try:
            self.write(descriptor, [content], 0)
            self.fsync(descriptor)
        finally:
            os.close(descriptor)

    def replace_file(self, path: Path, content: bytes) -> None:
        """Write to a temporary name in the same directory, fsync, rename, fsync the directory."""
        temporary = path.with_name(f".{path.name}.new")
        try:
            temporary.unlink(missing_ok=True)
            self.write_file(temporary, content)
            self.rename(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        self.fsync_directory(path.parent)

    def remove_tree(self, path: Path) -> None:
        """Remove a directory as far as possible; of a link the link alone."""
        if path.is_symlink():
            with contextlib.suppress(OSError):
                path.unlink()
        else:
            shutil.rmtree(path, ignore_errors=True)
