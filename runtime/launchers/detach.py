"""Run by path, by process.start_detached: LOG DIRECTORY ARGV...; becomes a daemon that runs ARGV, prints its pid."""

import os
import sys


def main() -> int:
    log, directory, argv = sys.argv[1], sys.argv[2], sys.argv[3:]
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    failure_read, failure_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(failure_read)
        _become(output, directory, argv, failure_write)
    os.close(failure_write)
    with os.fdopen(failure_read, "rb") as pipe:  # closed by a successful exec
        failure = pipe.read()
    if failure:
        sys.stderr.write(failure.decode(errors="replace") + "\n")
        return 1
    sys.stdout.write(f"{pid}\n")
    return 0


def _become(output: int, directory: str, argv: list[str], failure_write: int) -> None:
    try:
        os.setsid()
        os.chdir(directory)
        empty = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((empty, 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        os.execv(argv[0], argv)
    except OSError as error:
        os.write(failure_write, str(error).encode())
    finally:
        os._exit(127)


if __name__ == "__main__":
    sys.exit(main())
