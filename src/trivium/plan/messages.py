"""How the tensors of messages are encoded, and how many bytes an encoding sends."""

from math import ceil
from typing import Literal, NamedTuple

from trivium.config import Config
from trivium.plan.precision import Precision

EncodingName = Literal["exact", "bf16", "fp8", "taco", "taco-hadamard", "int8"]


class Unit(NamedTuple):
    """The smallest part of a message that is encoded by itself; messages are padded to whole units. sent_bytes: of a
    unit, with its scales."""

    elements: int
    sent_bytes: int


# Elements that share a scale. fp8: one E8M0 scale for each block. taco: an E4M3 scale for each block, relative to an
# fp32 scale of a unit. int8: one fp32 scale.
FP8_BLOCK, TACO_BLOCK, TACO_UNIT, INT8_BLOCK = 128, 128, 4096, 2048
UNITS: dict[EncodingName, Unit] = {
    "bf16": Unit(1, 2),
    "fp8": Unit(FP8_BLOCK, FP8_BLOCK + 1),
    "taco": Unit(TACO_UNIT, TACO_UNIT + TACO_UNIT // TACO_BLOCK + 4),
    "taco-hadamard": Unit(TACO_UNIT, TACO_UNIT + TACO_UNIT // TACO_BLOCK + 4),
    "int8": Unit(INT8_BLOCK, INT8_BLOCK + 4),
}


def encoded_bytes(encoding: EncodingName, elements: int, element_bytes: int) -> int:
    """Return the bytes of a message. element_bytes: of an element that is not encoded."""
    if encoding == "exact":
        return elements * element_bytes
    unit = UNITS[encoding]
    return ceil(elements / unit.elements) * unit.sent_bytes


def summed_bytes(encoding: EncodingName, elements: int, element_bytes: int, ranks: int) -> int:
    """Return the bytes that each of `ranks` ranks hands to a sum: one message for each rank's slice."""
    if encoding == "exact":
        return elements * element_bytes
    return ranks * encoded_bytes(encoding, ceil(elements / ranks), element_bytes)


class Messages(Config):
    """Encodings of messages. All but `exact` round what is sent, so that layouts no longer compute the same.

    bf16: two bytes for each element. fp8: E4M3 in blocks of 128 that share a power of two. taco: E4M3 with two levels
    of scales, after TACO (arXiv 2604.24088), whose details are not known here; taco-hadamard also rotates each block.
    int8: eight-bit integers in blocks of 2,048 that share a scale, after ZeRO++ (arXiv 2306.10209).
    """

    tensor: EncodingName = "exact"  # activations and their gradients between tensor ranks, inside of layers
    gradients: EncodingName = "exact"  # gradients of weights between replicas; they are added up in fp32
    weights: EncodingName = "exact"  # updated weights between the replicas that share them; no effect where zero is 0

    @property
    def are_exact(self) -> bool:
        """Whether no message is rounded."""
        return all(encoding == "exact" for _, encoding in self)

    @property
    def share_scales(self) -> bool:
        """Whether gradients or weights are rounded by scales that several numbers share."""
        return any(UNITS[each].elements > 1 for each in (self.gradients, self.weights) if each != "exact")

    def problems(self, precision: Precision) -> list[str]:
        """Return a message if weights are rounded that the optimizer has no wider copy of."""
        if self.weights == "exact" or precision.has_master:
            return []
        return [
            f"plan.messages.weights is {self.weights}, and with plan.precision.weights {precision.weights} the sent "
            f"weights are the only ones: each update would be rounded; set plan.precision.weights to bf16, or "
            f"plan.messages.weights to exact"
        ]


EXACT = Messages()


def ratio(encoding: EncodingName, element_bytes: int) -> float:
    """Return the bytes of an encoded message over those of the exact one; of large messages."""
    if encoding == "exact":
        return 1.0
    unit = UNITS[encoding]
    return unit.sent_bytes / unit.elements / element_bytes
