"""The bench on which procedure and reconciler are tested."""

from tests.fakes.fixtures import bench

__all__ = ["bench"]
