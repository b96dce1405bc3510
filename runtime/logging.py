"""get_logger: a logger that knows of ranks, as the Accelerate API has it."""

import logging
from collections.abc import MutableMapping
from typing import Any

from .errors import ConfigurationError, UsageError
from .state import PartialState

__all__ = ["MultiProcessAdapter", "get_logger"]


class MultiProcessAdapter(logging.LoggerAdapter[logging.Logger]):
    """Logs on the main process unless told otherwise, with the rank in front where several speak.

    Every method of a logger takes two more keyword arguments: main_process_only (True), and in_order (False): all
    ranks log, one after the other. in_order is a collective: all ranks call it, at any level.
    """

    def __init__(self, logger: logging.Logger) -> None:
        super().__init__(logger, {})
        self._warned: set[str] = set()

    def log(  # type: ignore[override]  # takes more by keyword
        self,
        level: int,
        msg: object,
        *args: object,
        main_process_only: bool = True,
        in_order: bool = False,
        **kwargs: Any,
    ) -> None:
        """Log on the main process, on all, or on all in the order of their ranks.

        Raises:
            UsageError: neither PartialState nor Accelerator was made yet, so that ranks are unknown.
        """
        state = _state()
        kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1
        if not in_order:
            if state.is_main_process or not main_process_only:
                self._say(level, msg, args, kwargs)
            return
        for rank in range(state.num_processes):
            if rank == state.process_index:
                self._say(level, msg, args, kwargs)
            state.wait_for_everyone()

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        state = _state()
        return (f"[RANK {state.process_index}] {msg}" if state.num_processes > 1 else msg), kwargs

    def warning_once(self, msg: object, *args: object, **kwargs: Any) -> None:
        """warning(), the first time that this logger is given this text."""
        text = str(msg) % args if args else str(msg)
        if text in self._warned:
            return
        self._warned.add(text)
        self.warning(msg, *args, **(kwargs | {"stacklevel": kwargs.get("stacklevel", 1) + 1}))

    def _say(self, level: int, msg: object, args: tuple[object, ...], kwargs: Any) -> None:
        if self.isEnabledFor(level):
            prefixed, kwargs = self.process(msg, kwargs)
            self.logger.log(level, prefixed, *args, **(kwargs | {"stacklevel": kwargs["stacklevel"] + 1}))


def get_logger(name: str, log_level: str | int | None = None) -> MultiProcessAdapter:
    """The logger of this name, aware of ranks.

    Args:
        log_level: DEBUG, INFO, ... or a number, for this logger alone; None leaves its level.

    Raises:
        ConfigurationError: there is no such level.
    """
    logger = logging.getLogger(name)
    if log_level is not None:
        level = log_level.upper() if isinstance(log_level, str) else log_level
        try:
            logger.setLevel(level)
        except (ValueError, TypeError) as error:
            raise ConfigurationError(
                f"log_level={log_level!r}", allowed="DEBUG, INFO, WARNING, ERROR, CRITICAL, or a number"
            ) from error
    return MultiProcessAdapter(logger)


def _state() -> PartialState:
    if PartialState._process is None:
        raise UsageError(
            "a logger of get_logger() before this process knows its rank",
            allowed="logging after PartialState() or Accelerator()",
            next_step="make the Accelerator first, or use logging.getLogger",
        )
    return PartialState()
