"""The harness's model of a Hugging Face folder, which is the oracle."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def load(folder, *, batch_size=4):
    """Open a folder as HFLM in fp32 on the CPU."""
    import transformers
    from lm_eval.models.huggingface import HFLM

    model = transformers.AutoModelForCausalLM.from_pretrained(str(folder), dtype="float32").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder))
    return HFLM(pretrained=model, tokenizer=tokenizer, backend="causal", batch_size=batch_size, device="cpu")
