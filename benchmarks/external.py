"""Peers that need an environment of their own: megatron-core and DeepSpeed."""

from typing import Any

NOT_RUN = {
    "megatron-core": "its tensor-parallel layers call torch.cuda throughout; on a processor it trains only with "
    "those calls replaced, which would no longer be the peer as documented",
    "DeepSpeed": "its CPU engine builds extensions at first use; not installed by this benchmark yet",
}


def external_rows() -> list[dict[str, Any]]:
    """A row each, so that the report never passes over a peer in silence."""
    return [
        {"name": f"{peer} (external)", "status": "not run", "reason": reason, "comparisons": []}
        for peer, reason in NOT_RUN.items()
    ]
