"""The dtypes that a plan names, as torch has them."""

import torch

DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
NARROW = (torch.bfloat16, torch.float16)
