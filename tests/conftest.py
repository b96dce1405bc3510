"""Rules for the whole suite: with FORERUN_NO_SKIPS=1 a skipped test is a failed run."""

import os
import signal

import pytest


def pytest_configure() -> None:
    # What a test starts inherits this: no signal of a closed terminal would reach it under nohup, and no Ctrl-C in the
    # background of a shell.
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    if skipped and _skips_are_errors():
        terminalreporter.write_sep("=", "skipped, and FORERUN_NO_SKIPS is set", red=True, bold=True)
        for report in skipped:
            terminalreporter.write_line(f"{report.nodeid or report.location[0]}: {report.longrepr}")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or not _skips_are_errors():
        return
    if reporter.stats.get("skipped") and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _skips_are_errors() -> bool:
    return os.environ.get("FORERUN_NO_SKIPS", "") == "1"
