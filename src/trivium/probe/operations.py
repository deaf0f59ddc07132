"""Measure products, memory bandwidth, attention and the optimizer on one device."""

import math

import torch

from trivium.comms.mesh import Mesh
from trivium.kernels.dtypes import DTYPES
from trivium.kernels.operations import operations_of
from trivium.kernels.sight import Sight
from trivium.parallel.context.attention import Context
from trivium.planner.measured import Attention, Product, Stream, Update
from trivium.probe.timing import device_seconds, median_seconds

# Rows, columns and inner length: square products, tall and skinny ones, and a ramp of inner lengths.
SHAPES = (
    *((n, n, n) for n in (128, 256, 512, 1024)),
    *((1024, 512, k) for k in (16, 64, 256, 1024)),
    *((4096, 64, 64), (2048, 96, 384), (64, 4096, 256), (192, 192, 2048), (32, 1024, 1024)),
)
SCALE_ON_GPU = 8  # factor of all lengths, because a GPU needs larger products to be busy
STREAMS = (1 << 10, 1 << 14, 1 << 18, 1 << 22)  # elements
STREAMS_ON_GPU = (1 << 20, 1 << 24, 1 << 27)  # the first fits a GPU's cache
UPDATES = (1 << 16, 1 << 20)
ATTENTIONS = ((4, 256, 4, 32), (2, 512, 4, 64), (8, 64, 8, 64))  # sequences, positions, heads, head width
# GPUs have fused attention for 16-bit dtypes only, and few heads would leave most of the GPU idle.
ATTENTIONS_ON_GPU = ((8, 1024, 16, 64), (4, 2048, 16, 128), (2, 4096, 16, 64))


def products(device: torch.device, budget: float) -> tuple[Product, ...]:
    """Measure products of every shape in fp32 and bf16, and of one square in fp64 and fp16."""
    scale = SCALE_ON_GPU if device.type == "cuda" else 1
    asked = [(name, tuple(scale * n for n in shape)) for name in ("fp32", "bf16") for shape in SHAPES]
    asked += [("fp64", SHAPES[2]), ("fp16", SHAPES[2])]
    each = budget / len(asked)
    return tuple(_product(device, name, m, n, k, each) for name, (m, n, k) in asked)


def streams(device: torch.device, budget: float) -> tuple[Stream, ...]:
    """Measure sums of vectors, from sizes that fit a cache to sizes that do not."""
    found, asked = [], STREAMS_ON_GPU if device.type == "cuda" else STREAMS
    for elements in asked:
        a, b, out = (torch.ones(elements, device=device) for _ in range(3))
        seconds = device_seconds(lambda: torch.add(a, b, out=out), device, budget=budget / len(asked))  # noqa: B023
        found.append(Stream(elements, seconds))
    return tuple(found)


def attentions(device: torch.device, budget: float) -> tuple[Attention, ...]:
    """Measure causal attention as in a model, forward and backward separately."""
    name, shapes = ("bf16", ATTENTIONS_ON_GPU) if device.type == "cuda" else ("fp32", ATTENTIONS)
    return tuple(_attention(device, name, shape, budget / len(shapes)) for shape in shapes)


def updates(device: torch.device, budget: float) -> tuple[Update, ...]:
    """Measure fused AdamW as the trainer uses it."""
    found = []
    for elements in UPDATES:
        weights = torch.nn.Parameter(torch.ones(elements, device=device))
        weights.grad = torch.ones_like(weights)
        rule = torch.optim.AdamW([weights], fused=True)
        found.append(Update(elements, median_seconds(rule.step, device, budget=budget / len(UPDATES))))
    return tuple(found)


def _product(device: torch.device, name: str, m: int, n: int, k: int, budget: float) -> Product:
    """Measure the product x W^T and the gradients of x and W, as in a linear layer."""
    dtype = DTYPES[name]
    x = torch.randn(m, k, device=device).to(dtype)
    weight = torch.randn(n, k, device=device).to(dtype)
    grad = torch.randn(m, n, device=device).to(dtype)

    products = operations_of(device.type).products

    def backward() -> None:
        products.gradient_of_inputs(grad, weight)
        products.gradient_of_weight(grad, x)

    forward = device_seconds(lambda: products.product(x, weight), device, budget=budget / 3)
    return Product(name, m, n, k, forward, device_seconds(backward, device, budget=2 * budget / 3))


def _attention(device: torch.device, name: str, shape: tuple[int, int, int, int], budget: float) -> Attention:
    sequences, sequence, heads, width = shape
    context = Context(Mesh.single(device).context, "ring", operations_of(device.type).attention)
    seen = Sight((), None)
    made = torch.randn(sequence, sequences, heads, 3, width, device=device).to(DTYPES[name]).requires_grad_()

    def forward() -> torch.Tensor:
        return context.attend_joined(made.permute(3, 1, 2, 0, 4), seen)

    grad = torch.randn_like(forward())

    def both() -> None:
        torch.autograd.grad(forward(), made, grad)

    first = device_seconds(forward, device, budget=budget / 2)
    whole = device_seconds(both, device, budget=budget / 2)
    return Attention(*shape, forward=first, backward=max(whole - first, math.ulp(1.0)), dtype=name)
