"""The bytes of tensors, however these lie in memory."""

import torch

from runtime.checkpoint.plain import same
from runtime.checkpoint.tensor_file import byte_view


def test_one_element_of_any_stride_has_its_bytes() -> None:
    column = torch.arange(3.0).view(1, 3)[:, 1]
    assert column.stride() == (3,)
    assert bytes(byte_view(column)) == torch.tensor([1.0]).numpy().tobytes()
    assert same(column, torch.tensor([1.0]))
    assert not same(column, torch.tensor([2.0]))
