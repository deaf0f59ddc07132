"""The harness's model of a Hugging Face folder: the oracle of ours."""

import importlib.util
import os
import sys
from types import ModuleType

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def load(folder, *, batch_size=4):
    """HFLM of a folder, fp32, on the CPU."""
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(str(folder), dtype="float32").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder))
    stand_in = _accelerate()
    sys.modules.update(stand_in)
    try:
        from lm_eval.models.huggingface import HFLM
    finally:
        for name in stand_in:
            del sys.modules[name]
    return HFLM(pretrained=model, tokenizer=tokenizer, backend="causal", batch_size=batch_size, device="cpu")


def _accelerate():
    """HFLM imports accelerate, and uses none of it for a model that is loaded already."""
    if importlib.util.find_spec("accelerate"):
        return {}
    module, utils = ModuleType("accelerate"), ModuleType("accelerate.utils")
    for name in ("Accelerator", "InitProcessGroupKwargs", "find_executable_batch_size"):
        setattr(module, name, None)
    utils.get_max_memory = None
    return {"accelerate": module, "accelerate.utils": utils}
