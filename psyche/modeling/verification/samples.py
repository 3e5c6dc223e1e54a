"""The sketch of each sample of a micro-batch, without its gradient, so that a micro-batch may have several pieces (V1).

A row of a linear layer's gradient is the sum over tokens of `delta[row] * input`, where `delta` is the gradient of the
layer's output. Its sketch is thus the sum of `delta[row] * (input . signs[row])`, and each sample has a part of it. As
an eighth of the rows is looked at, this costs a 24th of the forward and backward pass.
"""

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Final

import torch
from torch import Tensor, nn

from psyche.core.encoding.work import SKETCH_VALUES
from psyche.modeling.verification.sketch import LONGEST_ROW, ROWS_OF_ONE, Sketch, TakenRows

_BLOCK: Final = 1 << 22  # numbers that are multiplied at once
Layers = Mapping[nn.Module, Mapping[str, str]]  # a module's own parameters: their names in it, and in the model


def find_layers(model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> Layers | None:
    """The modules that have parameters, if the part that each sample has in their gradients can be told."""
    names = {id(parameter): name for name, parameter in parameters.items()}
    layers: dict[nn.Module, dict[str, str]] = {}
    for module in model.modules():
        own = dict(module.named_parameters(recurse=False))
        if own and (not _is_divisible(module) or any(id(one) not in names for one in own.values())):
            return None
        if own:
            layers[module] = {name: names[id(one)] for name, one in own.items()}
    # Layers that are computed again on the way back would be seen twice, and what they are called with be kept.
    is_repeated = any(getattr(module, "gradient_checkpointing", False) for module in model.modules())
    return None if is_repeated else layers


def _is_divisible(module: nn.Module) -> bool:
    own = list(module.parameters(recurse=False))
    if max(one.shape[-1] if one.dim() else 1 for one in own) > LONGEST_ROW:
        return False
    if type(module) is nn.Embedding:
        return module.max_norm is None and not module.scale_grad_by_freq and not module.sparse
    return isinstance(module, nn.Linear) or (not any(module.children()) and all(one.dim() == 1 for one in own))


class SampleSketches:
    """The sketches of one micro-batch's samples, added up layer by layer while it goes backward."""

    def __init__(
        self, sketch: Sketch, layers: Layers, rows: Mapping[str, TakenRows], samples: int, device: torch.device
    ) -> None:
        self._sketch, self._layers, self._rows, self._samples = sketch, layers, rows, samples
        self._is_mixed = False
        self._values = torch.zeros(samples, SKETCH_VALUES, device=device)

    def read(self) -> Tensor | None:
        """The values, fp32 [samples, 64]; none if a layer was not called with the samples one after the other."""
        return None if self._is_mixed else self._values

    @contextmanager
    def watch(self) -> Generator[None]:
        """Look at one forward and backward pass."""
        taking = [
            module for module, names in self._layers.items() if not all(self._rows[n].are_none for n in names.values())
        ]
        handles = [module.register_forward_hook(self._note) for module in taking]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _note(self, module: nn.Module, inputs: tuple[object, ...], output: object) -> None:
        one = inputs[0] if len(inputs) == 1 else None
        if not isinstance(one, Tensor) or not isinstance(output, Tensor) or not self._is_divided(module, one, output):
            self._is_mixed = True
        elif output.requires_grad:
            output.register_hook(partial(self._add, module, one.detach()))

    def _is_divided(self, module: nn.Module, one: Tensor, output: Tensor) -> bool:
        """Whether the first dimensions are those of samples and tokens."""
        dims = 2 if type(module) is nn.Embedding else 3
        of_both = one.shape[:2] == output.shape[:2] and one.shape[0] == self._samples
        return of_both and (one.dim() == dims or not isinstance(module, (nn.Linear, nn.Embedding)))

    @torch.no_grad()
    def _add(self, module: nn.Module, inputs: Tensor, delta: Tensor) -> None:
        add: Callable[[nn.Module, Tensor, Tensor], None] = self._add_vectors
        if isinstance(module, nn.Linear):
            add = self._add_linear
        elif isinstance(module, nn.Embedding):
            add = self._add_embedding
        add(module, inputs, delta)

    def _add_linear(self, module: nn.Module, inputs: Tensor, delta: Tensor) -> None:
        names = self._layers[module]
        if not (rows := self._rows[names["weight"]]).are_none:
            signs, buckets = self._sketch.find_signs(rows.numbers, rows.width)
            signs = signs.to(delta.dtype).T
            at_once = max(1, _BLOCK // (inputs.shape[1] * len(buckets)))  # a head has as many rows as words
            parts = (one.split(at_once) for one in (self._values, inputs, rows.take(delta)))
            for values, part, of_rows in zip(*parts, strict=True):
                sums = part.to(delta.dtype) @ signs
                values.index_add_(1, buckets, (sums * of_rows).float().sum(1))
        if "bias" in names:
            self._add_row(names["bias"], delta.float().sum(1))

    def _add_embedding(self, module: nn.Module, inputs: Tensor, delta: Tensor) -> None:
        assert isinstance(module, nn.Embedding)
        rows = self._rows[self._layers[module]["weight"]]
        signs, buckets = self._sketch.find_signs(rows.numbers, rows.width)
        number, rest = inputs // ROWS_OF_ONE, inputs % ROWS_OF_ONE
        taken = (rest == rows.first) & (inputs != (-1 if module.padding_idx is None else module.padding_idx))
        sample, token = taken.nonzero(as_tuple=True)
        number = number[sample, token]
        found = (delta[sample, token].float() * signs[number]).sum(1)
        self._values.view(-1).index_add_(0, sample * SKETCH_VALUES + buckets[number], found)

    def _add_vectors(self, module: nn.Module, inputs: Tensor, delta: Tensor) -> None:
        """A layer with vectors only, as those that normalize: its gradient is computed for each sample."""
        names = {name: one for name, one in self._layers[module].items() if not self._rows[one].are_none}
        own = dict(module.named_parameters(recurse=False))
        parameters = [own[name] for name in names]
        found: list[list[Tensor]] = [[] for _ in names]
        for sample in range(self._samples):
            with torch.enable_grad():
                output = module.forward(inputs[sample : sample + 1])
            parts = torch.autograd.grad(output, parameters, delta[sample : sample + 1].to(output.dtype))
            for one, part in zip(found, parts, strict=True):
                one.append(part)
        for name, parts in zip(names.values(), found, strict=True):
            self._add_row(name, torch.stack(parts).float())

    def _add_row(self, name: str, gradients: Tensor) -> None:
        """Add the only row of a vector, of which each sample has a gradient."""
        if not (rows := self._rows[name]).are_none:
            signs, buckets = self._sketch.find_signs(rows.numbers, rows.width)
            self._values.index_add_(1, buckets, (gradients * signs).sum(1, keepdim=True))
