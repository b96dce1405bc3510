"""Asking the Python that will train: short-lived processes of it, with scripts that need its standard library alone."""

from .api import NameAnswer, find_program, look_up, program_help
from .checkpoint import checkpoint_problem
from .interpreter import InterpreterFacts, default_interpreter, find_interpreter, probe_interpreter

__all__ = ["InterpreterFacts", "NameAnswer", "checkpoint_problem", "find_interpreter", "find_program", "look_up"]
__all__ += ["default_interpreter", "probe_interpreter", "program_help"]
