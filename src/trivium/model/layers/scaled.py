"""Gives linear layers products of 8-bit numbers, as the plan's precision says."""

from collections.abc import Mapping

from torch import nn

from trivium.comms.group import Group
from trivium.comms.mesh import Mesh
from trivium.kernels.float8 import E4M3, FORMATS
from trivium.kernels.operations import Operations
from trivium.kernels.scaled import GRANULARITIES, ScaledProducts, Scaling, of_this_rank
from trivium.model.layers.linear import Linear
from trivium.parallel.tensor.agreed import Agreed
from trivium.plan.float8 import Float8, scaled_weights
from trivium.plan.layers.part import Parameter
from trivium.plan.plan import Plan


def scale_products(
    stage: nn.Module, table: Mapping[str, Parameter], plan: Plan, mesh: Mesh, operations: Operations
) -> dict[str, ScaledProducts]:
    """Let the linear layers of a stage multiply 8-bit numbers; return their products by the names of their weights.

    table: the parameters of the stage by name.
    """
    float8 = plan.precision.float8
    found: dict[str, ScaledProducts] = {}
    for p in scaled_weights(float8, list(table.values()), plan.model.layers):
        assert float8 is not None, "no layer is scaled without its settings"
        groups = _groups(p, plan, mesh)
        agreed = Agreed(groups) if any(groups.values()) else of_this_rank
        found[p.name] = ScaledProducts(
            operations.products, scaling_of(float8), operations.scaled_product, agreed, float8.weight_gradients
        )
        module = stage.get_submodule(p.name.removesuffix(".weight"))
        assert isinstance(module, Linear), f"{p.name} belongs to no linear layer"
        module.use(found[p.name].arithmetic())
    return found


def scaling_of(float8: Float8) -> Scaling:
    """Return the rule of the scales of all layers."""
    recipe = "tensor" if float8.recipe == "delayed" else float8.recipe
    formats = E4M3, E4M3, FORMATS[float8.gradients]
    return Scaling(GRANULARITIES[recipe], formats, float8.block, float8.power_of_two, float8.margin)


def _groups(p: Parameter, plan: Plan, mesh: Mesh) -> dict[str, tuple[Group, ...]]:
    """Return the ranks that divide each dimension of the operands of a layer. A layer outside of tensor regions has
    only its own positions under sequence parallelism."""
    own_positions = p.split is None and plan.sequence_parallel
    found = {
        "T": (mesh.context, *[mesh.tensor] * own_positions),
        "I": (mesh.tensor,) * p.splits_inputs,
        "O": (mesh.tensor,) * p.splits_outputs,
    }
    return {name: tuple(group for group in groups if group.size > 1) for name, groups in found.items()}
