"""The operations of NVIDIA's and AMD's accelerators."""

from trivium.kernels.arithmetic import Arithmetic
from trivium.kernels.cuda import product
from trivium.kernels.cuda.attention import CudaAttention
from trivium.kernels.cuda.recording import Recording
from trivium.kernels.cuda.scaled import scaled_product
from trivium.kernels.operations import Operations

OPERATIONS = Operations(
    products=Arithmetic(
        product=product.product,
        add_gradient_of_weight=product.add_gradient_of_weight,
        gradient_of_bias=product.gradient_of_bias,
        widens=product.widens,
    ),
    scaled_product=scaled_product,
    attention=CudaAttention(),
    recording=Recording,
)
