"""The operations of a processor."""

from functools import partial
from types import MappingProxyType

from trivium.kernels.activations import ACTIVATIONS
from trivium.kernels.arithmetic import Arithmetic
from trivium.kernels.cpu import product
from trivium.kernels.cpu.attention import CpuAttention
from trivium.kernels.cpu.gelu import CpuGelu
from trivium.kernels.cpu.rms_norm import rms_norm
from trivium.kernels.operations import Operations
from trivium.kernels.scaled import product_of_values

OPERATIONS = Operations(
    products=Arithmetic(
        product=product.product,
        gradient_of_inputs=product.gradient_of_inputs,
        gradient_of_weight=product.gradient_of_weight,
        add_gradient_of_weight=product.add_gradient_of_weight,
        widens=product.widens,
        multiple=product.multiple,
    ),
    scaled_product=partial(product_of_values, multiply=product.product),  # faster than torch's kernel for codes
    attention=CpuAttention(),
    rms_norm=rms_norm,
    activations=MappingProxyType({**ACTIVATIONS, "gelu_tanh": CpuGelu()}),
)
