"""Reads checkpoints of ours, and folders of Hugging Face models.

Writes the one as the other: GPT as GPT2LMHeadModel, Llama as LlamaForCausalLM.
"""
