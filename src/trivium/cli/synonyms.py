"""Names that other training systems give to fields of a run's config, and fields that a misspelt name may mean."""

# A table of data: a field, and what Megatron-LM, DeepSpeed, transformers, nanoGPT and others call it.

import difflib
from collections.abc import Iterator, Mapping
from types import MappingProxyType

_NAMES = {
    "seed": "random_seed",
    "plan.model.layers": "num_layers n_layer n_layers num_hidden_layers depth",
    "plan.model.hidden": "hidden_size d_model n_embd dim width embedding_dim embed_dim model_dim",
    "plan.model.heads": "num_heads n_head n_heads num_attention_heads attention_heads",
    "plan.model.kv_heads": "num_key_value_heads n_kv_heads num_kv_heads num_query_groups",
    "plan.model.head_width": "head_dim head_size kv_channels",
    "plan.model.ffn": "ffn_hidden_size intermediate_size d_ff ffn_dim mlp_size",
    "plan.model.vocabulary": "vocab_size vocab",
    "plan.model.sequence": "seq_length seq_len sequence_length max_seq_len max_seq_length max_sequence_length "
    "context_length context_size block_size n_positions n_ctx max_position_embeddings",
    "plan.model.window": "sliding_window window_size",
    "plan.model.dropout": "hidden_dropout attention_dropout resid_pdrop",
    "plan.model.rope_base": "rope_theta rotary_base",
    "plan.model.init_std": "initializer_range init_method_std",
    "plan.batch.sequences": "batch_size global_batch_size train_batch_size global_batch",
    "plan.batch.micro": "micro_batch micro_batch_size microbatch_size per_device_train_batch_size "
    "train_micro_batch_size_per_gpu device_batch_size",
    "plan.batch.ramp": "rampup_batch_size batch_rampup",
    "plan.layout.tensor": "tp tensor_parallel tensor_parallel_size tensor_model_parallel_size",
    "plan.layout.pipeline": "pp pipeline_parallel pipeline_parallel_size pipeline_model_parallel_size",
    "plan.layout.data": "dp data_parallel data_parallel_size",
    "plan.layout.context": "cp context_parallel context_parallel_size",
    "plan.layout.chunks": "vpp virtual_pipeline_model_parallel_size num_layers_per_virtual_pipeline_stage",
    "plan.zero": "zero_stage fsdp use_distributed_optimizer",
    "plan.precision.weights": "mixed_precision torch_dtype bf16 fp16",
    "plan.recompute.mode": "gradient_checkpointing activation_checkpointing recompute_activations "
    "checkpoint_activations",
    "plan.compiled": "compile torch_compile",
    "training.steps": "max_steps num_steps total_steps train_steps train_iters max_iters iters num_iters",
    "training.lr": "learning_rate max_lr peak_lr base_lr",
    "training.lr_final_fraction": "min_lr lr_min final_lr",
    "training.warmup_tokens": "warmup warmup_steps warmup_iters lr_warmup_iters lr_warmup_samples warmup_ratio",
    "training.decay": "lr_decay_style lr_scheduler lr_scheduler_type lr_schedule scheduler",
    "training.decay_tokens": "lr_decay_iters decay_steps lr_decay_steps",
    "training.weight_decay": "wd",
    "training.clip": "grad_clip clip_grad max_grad_norm gradient_clipping gradient_clip_val",
    "training.beta1": "adam_beta1",
    "training.beta2": "adam_beta2",
    "training.epsilon": "eps adam_eps adam_epsilon",
    "training.checkpoint_every": "save_every save_interval save_steps checkpoint_interval",
    "training.keep_last": "save_total_limit",
    "training.validate_every": "eval_every eval_interval eval_steps",
    "training.start_from": "load resume resume_from init_from resume_from_checkpoint load_checkpoint",
    "tokens.tokenizer": "tokenizer_path tokenizer_model tokenizer_name",
    "generation.sampling.max_tokens": "max_new_tokens",
    "generation.sampling.temperature": "temp",
}
SYNONYMS: Mapping[str, str] = MappingProxyType({name: path for path, names in _NAMES.items() for name in names.split()})
_SIMILAR = 0.75  # of two names, by difflib, so that one may be a misspelling of the other


def fields_meant(name: str, paths: Mapping[str, str]) -> Iterator[str]:
    """Yield the paths of the fields that a name may mean, the likeliest first, each once. paths: of all fields, with
    the last part of each."""
    plain = name.strip("-").lower().replace("-", "_").rpartition(".")[2]
    names: dict[str, list[str]] = {}
    for path, last in paths.items():
        names.setdefault(last, []).append(path)
    for synonym, path in SYNONYMS.items():
        names.setdefault(synonym, []).append(path)
    close = [plain] if plain in names else difflib.get_close_matches(plain, names, n=3, cutoff=_SIMILAR)
    yield from dict.fromkeys(path for one in close for path in names[one])
