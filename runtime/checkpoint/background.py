"""What goes on beside the training: at most one save, and the SHA-256 digests of the checkpoint written last."""

import contextlib
import hashlib
import threading
from collections.abc import Callable
from pathlib import Path

from ..errors import CheckpointError
from .disk import Disk
from .manifest import read_manifest, write_digests

_PIECE_BYTES = 2**22


class BackgroundSave:
    """One save at a time, in a thread of its own."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def start(self, work: Callable[[], object]) -> None:
        """Begin; the one before must have been finished."""
        assert self._thread is None, "finish() comes first"

        def run() -> None:
            try:
                work()
            except Exception as error:
                self._error = error

        # Not a daemon: the process does not end in the middle of a save.
        self._thread = threading.Thread(target=run, name="forerun-checkpoint")
        self._thread.start()

    def finish(self) -> None:
        """Wait for the save under way.

        Raises:
            CheckpointError, DistributedError: it failed. It is said once.
        """
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        error, self._error = self._error, None
        if error is not None:
            raise error


class Digester:
    """Completes manifests by SHA-256 digests in a thread that ends when there is nothing left to do."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._directory: Path | None = None

    def start(self, directory: Path) -> None:
        """Begin with a checkpoint that is complete; the one before is given up if it is not done."""
        with self._lock:
            self._halt()
            self._stop = threading.Event()
            self._directory = directory
            arguments = (directory, self._stop)
            self._thread = threading.Thread(target=self._run, args=arguments, name="forerun-sha256", daemon=True)
            self._thread.start()

    def leave(self, directory: Path) -> None:
        """Let a directory be, so that it can be replaced or removed."""
        with self._lock:
            if self._directory == directory:
                self._halt()

    def finish(self) -> None:
        """Wait until the digests are complete."""
        thread = self._thread
        if thread is not None:
            thread.join()

    def halt(self) -> None:
        """Give up what is not done: whoever needs the digests computes them (complete_digests)."""
        with self._lock:
            self._halt()

    def _halt(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self._thread = self._directory = None

    def _run(self, directory: Path, stop: threading.Event) -> None:
        # A manifest that stays incomplete is complete enough to load from, and says so itself.
        with contextlib.suppress(OSError, CheckpointError):
            manifest = read_manifest(directory)
            if manifest is None:
                return
            digests = {}
            for file in manifest.files:
                found = None if file.sha256 is not None else _digest(directory / file.path, stop)
                if stop.is_set():
                    return
                if found is not None:
                    digests[file.path] = found
            write_digests(directory, manifest, digests, disk=self._disk)


def _digest(path: Path, stop: threading.Event) -> str | None:
    result = hashlib.sha256()
    with path.open("rb", buffering=0) as handle:
        while piece := handle.read(_PIECE_BYTES):
            if stop.is_set():
                return None
            result.update(piece)
    return result.hexdigest()
