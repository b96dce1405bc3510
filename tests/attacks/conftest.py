"""The store, and the bench of the procedure, for those who try to get round it."""

from tests.fakes.fixtures import bench, clock, human, store

__all__ = ["bench", "clock", "human", "store"]
