"""Log-probabilities where the loss needs them, on processors.

TRL's fused head scores every position where there is no Triton, and accumulates its gradients with
float32 products: on two CPU cores that is more than half of a training step of SmolLM2-135M. Here
the head is applied to the labelled positions only, and the batch goes through the model as trees
(`ferrata.training.tree`) where the model allows it. On a GPU TRL's own head stays. This relies on
how TRL 1.16 calls the model (`fused_lm_head=True`, `FusedCausalLMOutput`); tests compare values and
gradients with TRL's.
"""

from __future__ import annotations

import functools
import types
from typing import Any

from ferrata.training.scores import score
from ferrata.training.tree import fits, hidden, make_forest, use_trees


def score_labels_only(model: Any, temperature: float = 1.0) -> None:
    """Replace the fused forward that TRL has put on a causal language model, if it runs on a CPU.

    Args:
        model: a transformers model, or a peft model around one; patched in place.
        temperature: the logits are divided by it.
    """
    plain = model.get_base_model() if hasattr(model, "get_base_model") else model
    if plain.device.type != "cpu":
        return
    ordinary = plain.forward
    packs = fits(plain)
    if packs:
        use_trees(plain)

    @functools.wraps(type(plain).forward)
    def forward(
        self: Any, *args: Any, fused_lm_head: bool = False, labels: Any = None, **kwargs: Any
    ) -> Any:
        if not fused_lm_head:
            return ordinary(*args, labels=labels, **kwargs)
        import torch
        from trl.trainer.utils import FusedCausalLMOutput

        labels_BT = labels[:, 1:]
        mask_BT = labels_BT != -100
        kwargs.pop("use_cache", None)
        kwargs = {name: value for name, value in kwargs.items() if value is not None}
        if packs and not args and kwargs.keys() <= {"input_ids", "attention_mask"}:
            forest = make_forest(kwargs["input_ids"], kwargs.get("attention_mask"))
            # Rows that are alike up to a label share the state that it is scored from.
            places_U, of_N = forest.place_BT[:, :-1][mask_BT].unique(return_inverse=True)
            hidden_UH = hidden(self.base_model, forest)[places_U]
        else:
            output = self.base_model(*args, use_cache=False, **kwargs)
            hidden_UH = output.last_hidden_state[:, :-1][mask_BT]
            of_N = torch.arange(len(hidden_UH), device=hidden_UH.device)
        log_probs_N, entropy_N, is_top1_N = score(
            hidden_UH, self.get_output_embeddings(), of_N, labels_BT[mask_BT], temperature
        )

        def spread(values_N: Any) -> Any:
            return values_N.new_zeros(mask_BT.shape).masked_scatter(mask_BT, values_N)

        log_probs_BT = spread(log_probs_N)
        return FusedCausalLMOutput(
            loss=-log_probs_BT.sum() / mask_BT.sum().clamp(min=1),
            log_probs=log_probs_BT,
            entropy=spread(entropy_N),
            is_top1=spread(is_top1_N),
            label_mask=mask_BT,
        )

    plain.forward = types.MethodType(forward, plain)
