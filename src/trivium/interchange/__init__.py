"""Reads checkpoints of ours, folders of Hugging Face models, and a training's metrics.

Writes either as the other (GPT-2, Llama, Mistral, Ministral, Qwen2, Qwen3, OLMo-2, OLMo-3), and metrics as
TensorBoard and wandb keep them.
"""
