"""megatron-core as a contestant: its GPT, data-parallel wrapper, schedules and optimizer, as its examples join them.

Where its local layers would be slower than PyTorch's on a processor they are replaced through its layer spec, as its
documentation proposes: attention by scaled_dot_product_attention, the norm by PyTorch's (its own wrapper of it
refuses sequence parallelism), and AdamW is PyTorch's fused one.
Legend: B sequences, S positions, N heads here, D head width.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from contest import Build
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from setting import LR, SEED, Setting
from torch import Tensor, nn
from torch_model import Gpt, tensors

from peers.megatron_on_cpu import stand_in_for_cuda
from trivium.comms.launch import Place

# Ours -> megatron-core's, within a layer.
LAYER_NAMES = {
    "attention_norm": "input_layernorm",
    "attention.qkv": "self_attention.linear_qkv",
    "attention.out": "self_attention.linear_proj",
    "mlp_norm": "pre_mlp_layernorm",
    "mlp.up": "mlp.linear_fc1",
    "mlp.down": "mlp.linear_fc2",
}
END_NAMES = {
    "embedding.word_embeddings": "tokens",
    "embedding.position_embeddings": "positions",
    "decoder.final_layernorm": "norm",
    "output_layer": "head",
}


class Megatron:
    """The model's part on this rank of pipeline x data x tensor ranks, tensor varying fastest."""

    def __init__(self, setting: Setting, config: TransformerConfig, replicas: int, layers: Sequence[int]) -> None:
        self.setting, self.replicas = setting, replicas
        self.replica = parallel_state.get_data_parallel_rank()
        model = _model(setting, config, layers[parallel_state.get_pipeline_model_parallel_rank()])
        _fill(model, setting, layers)
        wrapped = DistributedDataParallel(
            config, DistributedDataParallelConfig(overlap_grad_reduce=replicas > 1), model
        )
        self.model = wrapped
        config.no_sync_func = wrapped.no_sync if replicas > 1 else None
        config.finalize_model_grads_func = finalize_model_grads
        self.optimizer = get_megatron_optimizer(_recipe(setting), [wrapped], use_gloo_process_groups=False)
        for group in self.optimizer.param_groups:
            group["fused"] = True
            # Otherwise done by its learning-rate scheduler, which the benchmark has no use for.
            group["weight_decay"] = setting.rule.weight_decay * group.get("wd_mult", 1.0)
        self.positions = torch.arange(setting.sequence).unsqueeze(0)

    def step(self, number: int) -> Tensor | None:
        """One optimizer step."""
        self.model.zero_grad_buffer()
        self.optimizer.zero_grad()
        losses = get_forward_backward_func()(
            forward_step_func=self._forward,
            data_iterator=self._micro_batches(number),
            model=[self.model],
            num_microbatches=self.setting.micro_batches(self.replicas),
            seq_length=self.setting.sequence,
            micro_batch_size=self.setting.micro,
        )
        self.optimizer.step()
        return torch.stack([each["loss"] for each in losses]).mean() if losses else None

    def _micro_batches(self, number: int) -> Iterator[tuple[Tensor, Tensor]]:
        tokens, targets = tensors(self.setting, number, index=self.replica, of=self.replicas)
        return zip(tokens.split(self.setting.micro), targets.split(self.setting.micro), strict=True)

    def _forward(self, micro_batches: Iterator[tuple[Tensor, Tensor]], model: nn.Module) -> tuple[Tensor, Any]:
        tokens, targets = next(micro_batches)
        return model(tokens, self.positions, None, labels=targets), _mean_loss


class Attention(nn.Module):
    """Core attention by scaled_dot_product_attention; the arguments are those megatron-core passes."""

    def __init__(self, **_: Any) -> None:
        super().__init__()

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: None, **_: Any) -> Tensor:
        """[S, B, N, D] of each -> [S, B, N * D]."""
        q, k, v = (x.permute(1, 2, 0, 3) for x in (query, key, value))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return y.permute(2, 0, 1, 3).flatten(2)


class Norm(nn.LayerNorm):
    """LayerNorm whose gradients megatron-core sums over the tensor ranks under sequence parallelism."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float, **_: Any) -> None:
        super().__init__(hidden_size, eps=eps)
        for parameter in self.parameters():
            parameter.sequence_parallel = config.sequence_parallel


def megatron(tensor: int = 1, pipeline: int = 1, data: int = 1, layers: Sequence[int] | None = None) -> Build:
    """A layout; layers of each pipeline stage. Sequence parallel wherever tensor is above 1."""

    def build(setting: Setting, place: Place) -> Megatron:
        stand_in_for_cuda()
        if not dist.is_initialized():  # one rank alone
            dist.init_process_group("gloo", rank=0, world_size=1)
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=tensor, pipeline_model_parallel_size=pipeline, create_gloo_process_groups=False
        )
        model_parallel_cuda_manual_seed(SEED)
        held = layers or (setting.layers,)
        return Megatron(setting, _config(setting, tensor, pipeline, held), data, held)

    return build


def _config(setting: Setting, tensor: int, pipeline: int, layers: Sequence[int]) -> TransformerConfig:
    ends = {"num_layers_in_first_pipeline_stage": layers[0], "num_layers_in_last_pipeline_stage": layers[-1]}
    return TransformerConfig(
        num_layers=setting.layers,
        hidden_size=setting.hidden,
        num_attention_heads=setting.heads,
        tensor_model_parallel_size=tensor,
        sequence_parallel=tensor > 1,
        pipeline_model_parallel_size=pipeline,
        pipeline_dtype=torch.float32,
        deallocate_pipeline_outputs=True,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        activation_func=partial(F.gelu, approximate="tanh"),
        use_cpu_initialization=True,
        perform_initialization=False,
        **(ends if pipeline > 1 else {}),
    )


def _model(setting: Setting, config: TransformerConfig, layers_here: int) -> GPTModel:
    layer = get_gpt_layer_local_spec()
    layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = Norm
    layer.submodules.self_attention.submodules.core_attention = Attention
    return GPTModel(
        config,
        TransformerBlockSubmodules(layer_specs=[layer] * layers_here, layer_norm=Norm),
        setting.vocabulary,
        setting.sequence,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        position_embedding_type="learned_absolute",
    )


@torch.no_grad()
def _fill(model: GPTModel, setting: Setting, layers: Sequence[int]) -> None:
    """The initial values everybody starts from, this rank's part of each."""
    whole = Gpt(setting).fill().state_dict()
    start = sum(layers[: parallel_state.get_pipeline_model_parallel_rank()])
    rank = parallel_state.get_tensor_model_parallel_rank()
    for name, parameter in model.named_parameters():
        value = whole[_name(name, start)]
        split = [axis for axis in range(value.dim()) if value.shape[axis] != parameter.shape[axis]]
        for axis in split:
            length = parameter.shape[axis]
            value = value.narrow(axis, rank * length, length)
        parameter.copy_(value)


def _name(theirs: str, first_layer: int) -> str:
    module, _, kind = theirs.rpartition(".")
    if module in END_NAMES:
        return f"{END_NAMES[module]}.{kind}"
    _, _, number, inner = module.split(".", 3)
    ours = {value: key for key, value in LAYER_NAMES.items()}[inner]
    return f"layers.{first_layer + int(number)}.{ours}.{kind}"


def _recipe(setting: Setting) -> OptimizerConfig:
    rule = setting.rule
    return OptimizerConfig(
        optimizer="adam",
        lr=LR,
        weight_decay=rule.weight_decay,
        adam_beta1=rule.beta1,
        adam_beta2=rule.beta2,
        adam_eps=rule.epsilon,
        clip_grad=rule.clip,
    )


def _mean_loss(losses: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    loss = losses.mean()
    return loss, {"loss": loss.detach().clone()}  # the schedule divides the other in place
