"""Faults of latent attention."""

from dataclasses import replace

from faults.mutant import fault, plan
from trivium.certify.layouts import DEEPSEEK, LATENT, YARN
from trivium.model.layers import attention_latent
from trivium.parallel.tensor import regions
from trivium.plan import buckets

LITE = {**DEEPSEEK, "latent": LATENT}
DEEPSEEK_V2 = {**DEEPSEEK, "latent": {**LATENT, "query_rank": 6}, "rope_scaling": {**YARN, "mscale_all_dim": 0.7}}


@fault(attention_latent, "Rotation", plan(model=LITE), plan(context=2, model=DEEPSEEK_V2))
def halves_rotated_instead_of_neighbours(original, mesh):
    """Column d is rotated with column d + D/2, as in Llama, although DeepSeek pairs neighbours."""
    return lambda part: original(replace(part, neighbours=False))


@fault(attention_latent, "ScaledAttention", plan(model=DEEPSEEK_V2), plan(context=2, model=DEEPSEEK_V2))
def scores_of_yarn_not_enlarged(original, mesh):
    """Scores have the scale 1 / sqrt(columns of a head), without the factor that YaRN has in DeepSeek."""
    return lambda inner, factor: inner


@fault(buckets, "partial_over", plan(tensor=2, sequence_parallel=True, model=DEEPSEEK_V2))
def norm_of_latent_not_reduced(original, mesh):
    """Under sequence parallelism the gradient of the norm of a latent covers this rank's positions only."""
    return lambda plan, p: () if p.name.endswith("kv_norm.weight") else original(plan, p)


@fault(regions, "enter_whole", plan(tensor=2, model=LITE))
def gradient_of_the_shared_key_not_summed(original, mesh):
    """The rotated key that all heads share gets the gradient of this tensor rank's heads only."""
    return lambda x, group: x
