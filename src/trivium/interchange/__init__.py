"""Reads checkpoints of ours, folders of Hugging Face models, and a training's metrics.

Writes either as the other (GPT2LMHeadModel, LlamaForCausalLM), and metrics as TensorBoard and wandb keep them.
"""
