"""Linear layers with their weights in the layout that the processor's matrix product reads.

oneDNN lays a bfloat16 weight out anew in every product. Decoding multiplies the same weights by a
few rows, hundreds of times, so that it is a good part of the work. Here the layout is made once,
and again whenever the weight has changed. This relies on two operators of torch 2.13
that its compiler uses (`mkldnn._reorder_linear_weight`, `mkldnn._linear_pointwise`); where they are
missing, nothing is packed. A test compares the products.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

ROWS = 64  # the layout is made for products of about this many rows


class _Packed:
    """Stands in for a layer's `forward`."""

    def __init__(self, layer: Any) -> None:
        self._layer = layer
        self._packed: Any = None
        self._of: tuple[int, int] | None = None  # which state of the weight is packed

    def __call__(self, x: Tensor) -> Tensor:
        import torch

        weight = self._layer.weight
        state = weight.data_ptr(), weight._version
        if state != self._of:
            self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), ROWS)
            self._of = state
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, None, "none", [], "")
        return out


def pack(model: Any) -> None:
    """Pack the linear layers of a model that is only played, never trained; weights may be
    overwritten at any time. Does nothing where it would not help: only bfloat16 on a processor.
    """
    import torch

    operators = torch.ops.mkldnn
    names = ("_reorder_linear_weight", "_linear_pointwise")
    if not torch.backends.mkldnn.is_available() or not all(hasattr(operators, n) for n in names):
        return
    for layer in model.modules():
        if type(layer) is not torch.nn.Linear or layer.bias is not None:
            continue
        if layer.weight.device.type == "cpu" and layer.weight.dtype == torch.bfloat16:
            layer.forward = _Packed(layer)
