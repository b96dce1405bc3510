"""A store in a directory of its own, with a clock that tests move."""

from tests.fakes.fixtures import clock, human, store

__all__ = ["clock", "human", "store"]
