# SPDX-License-Identifier: Apache-2.0
"""The models of the paper's table 2 as traces, derived from their published architectures.

- VGG16: configuration D of Simonyan & Zisserman, arXiv 1409.1556, table 1; 138 357 544 parameters.
- ResNet50: He et al., arXiv 1512.03385, table 1, with batch normalisation after every convolution; 25 557 032
  parameters.
- Transformer: the base model of Vaswani et al., arXiv 1706.03762, table 3, one matrix of 37 000 embeddings shared by
  encoder, decoder and output; 63 M parameters.

Derivation of the times: a layer's multiply-accumulates from its shape, two floating point operations each, `BATCH`
images (`TOKENS` tokens) per rank and step, backward twice the forward, all at `FLOPS`. Normalisation, activation,
pooling and softmax take no time of their own. Gradients are of 32 bits. `FLOPS` is ours: half the 15.7 TFLOP/s
single-precision peak that NVIDIA states for a V100; ``--compute-scale`` makes it any other accelerator.

Model parallelism of the Transformer is that of Megatron-LM (arXiv 1909.08053): each attention and each feed-forward
block is split over the model dimension, and its output is reduced there, forward and backward; embeddings are split by
vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

from ring_bench.schedule import Collective
from ring_bench.traces.format import Layer, LayerCall, TraceFile

__all__ = ["BATCH", "FLOPS", "MODELS", "TOKENS", "resnet50", "transformer", "vgg16"]

FLOPS = 7.85e12
"""Floating point operations per second that a rank sustains."""
BATCH = 32
"""Images per rank and step."""
TOKENS = 4096
"""Tokens of the source, and of the target, per model-parallel group and step."""
SENTENCE = 32
"""Tokens that attend to each other; decides about 1 % of the Transformer's time."""
_BYTES = 4


def _layer(name: str, parameters: int, macs: float) -> Layer:
    forward_us = 2 * macs / FLOPS * 1e6
    return Layer(name=name, forward_us=forward_us, backward_us=2 * forward_us, gradient_bytes=parameters * _BYTES)


def _convolution(name: str, kernel: int, inputs: int, outputs: int, side: int, *, extra: int) -> Layer:
    """Give a convolution whose output has ``side`` x ``side`` pixels; ``extra`` parameters per output channel."""
    weights = kernel * kernel * inputs * outputs
    return _layer(name, weights + extra * outputs, BATCH * side * side * weights)


def _dense(name: str, inputs: int, outputs: int) -> Layer:
    return _layer(name, (inputs + 1) * outputs, BATCH * inputs * outputs)


_SOURCE = (
    f"parameters and operations from {{}}; {{}} per rank and step at {FLOPS / 1e12:g} TFLOP/s, backward twice forward, "
    "32-bit gradients (ring_bench.traces.models)"
)


def vgg16() -> TraceFile:
    """VGG16, data parallel."""
    layers, inputs, side = [], 3, 224
    for stage, (outputs, depth) in enumerate([(64, 2), (128, 2), (256, 3), (512, 3), (512, 3)], start=1):
        for number in range(1, depth + 1):
            layers.append(_convolution(f"conv{stage}_{number}", 3, inputs, outputs, side, extra=1))
            inputs = outputs
        side //= 2
    layers += [_dense("fc6", 512 * 7 * 7, 4096), _dense("fc7", 4096, 4096), _dense("fc8", 4096, 1000)]
    return TraceFile(name="vgg16", source=_SOURCE.format("arXiv 1409.1556", f"{BATCH} images"), layers=layers)


def resnet50() -> TraceFile:
    """ResNet50, data parallel."""
    layers = [_convolution("conv1", 7, 3, 64, 112, extra=2)]
    inputs, side = 64, 56
    for stage, (width, blocks) in enumerate([(64, 3), (128, 4), (256, 6), (512, 3)], start=2):
        outputs = 4 * width
        for block in range(1, blocks + 1):
            before, name = side, f"conv{stage}_{block}"
            if block == 1 and stage > 2:
                side //= 2  # the first block of a stage has stride 2, in its 3 x 3 convolution
            layers.append(_convolution(f"{name}a", 1, inputs, width, before, extra=2))
            layers.append(_convolution(f"{name}b", 3, width, width, side, extra=2))
            layers.append(_convolution(f"{name}c", 1, width, outputs, side, extra=2))
            if block == 1:
                layers.append(_convolution(f"{name}s", 1, inputs, outputs, side, extra=2))
            inputs = outputs
    layers.append(_dense("fc", 2048, 1000))
    return TraceFile(name="resnet50", source=_SOURCE.format("arXiv 1512.03385", f"{BATCH} images"), layers=layers)


def transformer(model_ranks: int) -> TraceFile:
    """The base Transformer, its blocks split over ``model_ranks`` ranks, data parallel over the rest."""
    width, inner, vocabulary, depth = 512, 2048, 37_000, 6

    def block(name: str, weights: int, others: int, macs: float) -> Layer:
        """Give a block: ``weights`` parameters are split, ``others`` (output biases, normalisation) are not."""
        layer = _layer(name, weights // model_ranks + others, macs / model_ranks)
        if model_ranks == 1:
            return layer
        call = LayerCall(collective=Collective.ALL_REDUCE, bytes=TOKENS * width * _BYTES, along="model")
        return layer.model_copy(update={"forward_calls": [call], "backward_calls": [call]})

    def attention(name: str) -> Layer:
        weights = 4 * width * width
        return block(name, weights + 3 * width, 3 * width, TOKENS * (weights + 2 * SENTENCE * width))

    def feed_forward(name: str) -> Layer:
        weights = 2 * width * inner
        return block(name, weights + inner, 3 * width, TOKENS * weights)

    layers = [block("embedding", vocabulary * width, 0, 0)]
    for number in range(1, depth + 1):
        layers += [attention(f"encoder{number} attention"), feed_forward(f"encoder{number} ffn")]
    for number in range(1, depth + 1):
        layers += [attention(f"decoder{number} attention"), attention(f"decoder{number} cross")]
        layers.append(feed_forward(f"decoder{number} ffn"))
    layers.append(_layer("output", 0, TOKENS * width * vocabulary / model_ranks))  # its weights are the embedding's
    return TraceFile(
        name="transformer",
        source=_SOURCE.format("arXiv 1706.03762", f"{TOKENS} + {TOKENS} tokens"),
        dimensions=["model", "data"],
        layers=layers,
    )


MODELS: dict[str, Callable[[int], TraceFile]] = {
    "vgg16": lambda _: vgg16(),
    "resnet50": lambda _: resnet50(),
    "transformer": transformer,
}
"""By name; the argument is the number of ranks of the first dimension, for models that are split over it."""
