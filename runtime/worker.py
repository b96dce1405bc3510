"""Run by path, by the engine, once a rank: [--parent PID] [-m] SCRIPT ARGS. Runs the script as python itself would.

Needs the standard library alone. Before the script: the rank dies with its engine, its output goes to its own files,
and `runtime` means ours unless the script's folder or PYTHONPATH has a `runtime` of its own. After a crash, the
exception is on record.
"""

import contextlib
import ctypes
import faulthandler
import importlib
import importlib.machinery
import importlib.util
import io
import json
import os
import runpy
import signal
import sys
import time
import traceback
import types
from pathlib import Path
from typing import Any, NoReturn

_HERE = Path(__file__).resolve().parent
_ALIAS = "_forerun_runtime"
_PR_SET_PDEATHSIG = 1


def main(argv: list[str]) -> NoReturn:
    """Become the script; ends the process as the script does."""
    arguments = argv[1:]
    if arguments[0] == "--parent":
        _die_with(int(arguments[1]))
        arguments = arguments[2:]
    is_module = arguments[0] == "-m"
    target, *rest = arguments[1:] if is_module else arguments
    _forget_own_folder()
    error_file = _redirect()
    faulthandler.enable()
    sys.argv = [target, *rest]
    folder = os.getcwd() if is_module else str(Path(target).resolve().parent)
    _set_path(folder)
    _guard_imports()
    _forget_alias()
    try:
        if is_module:
            runpy.run_module(target, run_name="__main__", alter_sys=True)
        else:
            _run_script(target)
    except SystemExit:
        raise
    except BaseException as error:
        _crash(error, error_file)
    sys.exit(0)


def _die_with(parent: int) -> None:
    """Ask the kernel for SIGKILL when the engine dies; if it has died already, die now."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _forget_own_folder() -> None:
    """python put this file's folder first; our module names there must hide nobody's."""
    sys.path[:] = [entry for entry in sys.path if not entry or Path(entry).resolve() != _HERE]


def _ours(name: str) -> Any:
    """One of our modules under a private name, whatever `runtime` means to the script."""
    if _ALIAS not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            _ALIAS, _HERE / "__init__.py", submodule_search_locations=[str(_HERE)]
        )
        assert spec is not None
        assert spec.loader is not None
        package = importlib.util.module_from_spec(spec)
        sys.modules[_ALIAS] = package
        spec.loader.exec_module(package)
    return importlib.import_module(f"{_ALIAS}.{name}")


def _redirect() -> Path | None:
    """Point stdout and stderr to this rank's files; the file for its last exception, None outside a run."""
    environment = _ours("env").read_environment()
    if environment.run_dir is None:
        return None
    layout = _ours("layout").RunLayout(environment.run_dir)
    layout.logs.mkdir(parents=True, exist_ok=True)
    for descriptor, path in ((1, layout.stdout(environment.rank)), (2, layout.stderr(environment.rank))):
        target = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.dup2(target, descriptor)
        os.close(target)
    error_file: Path = layout.error(environment.rank)
    return error_file


def _set_path(folder: str) -> None:
    """The script's folder first, as python does; our `runtime` before site-packages, after what the user put ahead."""
    environment = _ours("env")
    run_dir = environment.read_environment().run_dir
    given = environment.current_environment().get("PYTHONPATH", "").split(os.pathsep)
    given = [os.path.abspath(entry) for entry in given if entry]
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, folder)
    ahead = sys.path.index(folder) + 1 if folder in sys.path else 0
    while ahead < len(sys.path) and os.path.abspath(sys.path[ahead]) in given:
        ahead += 1
    theirs = importlib.machinery.PathFinder.find_spec("runtime", sys.path[:ahead])
    if theirs is None:
        _offer_runtime(ahead, run_dir)
    elif theirs.loader is None:  # a plain folder: an installed forerun would come before it, so it is bound now
        sys.modules["runtime"] = importlib.util.module_from_spec(theirs)


def _guard_imports() -> None:
    """In a run, the planned tree is imported from its copy, and modules from elsewhere go on record at the end."""
    environment = _ours("env").read_environment()
    if environment.run_dir is None:
        return
    layout, origin = _ours("layout").RunLayout(environment.run_dir), ""
    untouched = [str(environment.run_dir), str(environment.run_dir.resolve()), str(_HERE)]
    with contextlib.suppress(OSError, ValueError, KeyError):  # by hand there is no plan, so no tree was copied
        origin = json.loads(layout.plan.read_text())["code"]["origin"]
        _ours("snapshot_imports").SnapshotFinder(origin, str(layout.code), untouched=untouched).install()
    _ours("loaded_modules").record_at_exit(
        layout.modules(environment.rank),
        rank=environment.rank,
        inside=[environment.run_dir, _HERE],
        tree=origin,
        python_path=_ours("env").current_environment().get("PYTHONPATH", ""),
    )


def _forget_alias() -> None:
    for name in [name for name in sys.modules if name == _ALIAS or name.startswith(f"{_ALIAS}.")]:
        del sys.modules[name]


def _offer_runtime(position: int, run_dir: Path | None) -> None:
    """Make `runtime` importable: from the run's own folder, which spawned children inherit, or else by file."""
    link = None if run_dir is None else _ours("layout").RunLayout(run_dir).python_path
    if link is not None and (link / "runtime" / "__init__.py").is_file():
        sys.path.insert(position, str(link))
        return
    spec = importlib.util.spec_from_file_location(
        "runtime", _HERE / "__init__.py", submodule_search_locations=[str(_HERE)]
    )
    assert spec is not None
    assert spec.loader is not None
    sys.modules["runtime"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["runtime"])


def _run_script(script: str) -> None:
    """Execute in a lasting `__main__`: threads, exit handlers and pickles of the script find their names in it.

    (runpy.run_path takes its module away when the script's last line has run.)
    """
    file = os.path.join(os.getcwd(), script)  # as python itself spells it
    module = types.ModuleType("__main__")
    module.__dict__.update(
        __file__=file,
        __builtins__=__builtins__,
        __loader__=importlib.machinery.SourceFileLoader("__main__", file),
        __cached__=None,
        __spec__=None,
    )
    sys.modules["__main__"] = module
    with io.open_code(str(Path(script).resolve())) as handle:
        source = handle.read()
    exec(compile(source, file, "exec", dont_inherit=True), module.__dict__)


def _crash(error: BaseException, error_file: Path | None) -> NoReturn:
    """Record an uncaught exception, show it as python would, and end as python would."""
    trace = error.__traceback__
    while trace is not None and _is_bootstrap(trace):
        trace = trace.tb_next
    error.__traceback__ = trace
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    record = _describe(error)
    _write_record(record, error_file)
    sys.excepthook(type(error), error, trace)
    with contextlib.suppress(Exception):
        sys.stderr.flush()
    _write_record({**record, "stderr_end": _stderr_bytes()}, error_file)
    if isinstance(error, KeyboardInterrupt):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    sys.exit(1)


def _is_bootstrap(trace: types.TracebackType) -> bool:
    file = trace.tb_frame.f_code.co_filename
    return file in (__file__, runpy.__file__, "<frozen runpy>")


def _describe(error: BaseException) -> dict[str, Any]:
    """The record of an exception; what python prints of it stands in stderr from `stderr_begin` to `stderr_end`."""
    try:
        message = str(error)
    except Exception as failure:
        message = f"(no message: str() raised {type(failure).__name__})"
    return {
        "type": type(error).__name__,
        "message": message,
        "traceback": "".join(traceback.format_exception(type(error), error, error.__traceback__)),
        "time_s": time.time(),
        "stderr_begin": _stderr_bytes(),
    }


def _stderr_bytes() -> int:
    """Size of what stderr holds; 0 if the script has closed it."""
    with contextlib.suppress(OSError):
        return os.fstat(2).st_size
    return 0


def _write_record(record: dict[str, Any], path: Path | None) -> None:
    if path is None:
        return
    with contextlib.suppress(OSError):  # a full disk must not hide the exception itself
        temporary = path.with_name(path.name + ".tmp")
        temporary.write_text(json.dumps(record, indent=1), errors="backslashreplace")
        os.replace(temporary, path)


if __name__ == "__main__":
    main(sys.argv)
