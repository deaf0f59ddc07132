"""Encodings of messages: a transport around another one, which sends other bytes than those of the tensors.

A reduce-scatter sends each rank its encoded slice and adds what arrives in fp32, so that each contribution is rounded
once. An all-reduce then gathers the encoded sums. All ranks decode the same bytes, their own included, so that they
agree to the last bit. A number that is not finite makes its block NaN on every rank: it is never clamped in silence.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import torch

from trivium.comms.group import Group, PendingResult, Transport, Waitable, Work
from trivium.plan.messages import (
    FP8_BLOCK,
    INT8_BLOCK,
    TACO_BLOCK,
    TACO_UNIT,
    UNITS,
    EncodingName,
    encoded_bytes,
    summed_bytes,
)

Tensor = torch.Tensor

E4M3 = torch.float8_e4m3fn
E4M3_MAX = 448.0
INT8_MAX = 127.0
MIN_EXPONENT, MAX_EXPONENT = -126, 127  # of scales that are powers of two; normal numbers of fp32
NAN_EXPONENT = 255  # the code of E8M0 for NaN


class Encoding(NamedTuple):
    """encode: fp32 [units, elements] -> bytes [units, bytes]. decode: the reverse."""

    encode: Callable[[Tensor], Tensor]
    decode: Callable[[Tensor], Tensor]


def encoded(group: Group, name: EncodingName) -> Group:
    """Return the group with another encoding of its sums, scatters and gathers, and the same traffic."""
    if name == "exact" or group.carrier is None:
        return group
    return replace(group, carrier=Encoded(group.carrier, name))


class Encoded:
    """Encodes sums, reduce-scatters and all-gathers of floating-point tensors. All other messages are exact."""

    def __init__(self, inner: Transport, name: EncodingName) -> None:
        self.inner, self.name, self.posts_ahead = inner, name, inner.posts_ahead

    def sent_bytes(self, collective: str, x: Tensor, ranks: int) -> int:
        elements, size = x.numel(), x.element_size()
        if collective in ("all_reduce", "reduce_scatter"):
            return summed_bytes(self.name, elements, size, ranks)
        return encoded_bytes(self.name, elements, size) if collective == "all_gather" else elements * size

    def all_reduce(self, x: Tensor, group: Group, *, largest: bool = False) -> PendingResult:
        assert not largest, "a maximum is not encoded: use the exact group"
        flat, each = x.reshape(-1), -(-x.numel() // group.size)
        padded = torch.nn.functional.pad(flat, (0, each * group.size - flat.numel()))
        scattered, out = self.reduce_scatter(padded, group), padded.new_empty(each * group.size)

        def finish() -> None:
            self.all_gather(out, scattered.wait(), group).wait()
            x.copy_(out[: flat.numel()].view(x.shape))

        return PendingResult(None, x, finish)

    def reduce_scatter(self, x: Tensor, group: Group) -> PendingResult:
        out = x.new_empty((x.shape[0] // group.size, *x.shape[1:]))
        sent = torch.stack([encode(self.name, part) for part in x.reshape(group.size, -1)])
        received = torch.empty_like(sent)

        def add() -> None:
            wide = torch.promote_types(x.dtype, torch.float32)
            total = torch.zeros(out.numel(), dtype=wide, device=x.device)
            for part in received:
                total += decode(self.name, part, out.numel())
            out.copy_(total.view(out.shape))

        return PendingResult(self.inner.all_to_all(received, sent, group), out, add, group)

    def all_gather(self, out: Tensor, x: Tensor, group: Group) -> Waitable:
        own = encode(self.name, x)
        received = own.new_empty((group.size, *own.shape))

        def write() -> None:
            for part, place in zip(received, out.view(group.size, -1), strict=True):
                place.copy_(decode(self.name, part, x.numel()))

        return PendingResult(self.inner.all_gather(received.view(-1), own, group), out, write)

    def send(self, tensor: Tensor, to: int, group: Group, tag: int = 0) -> Work:
        return self.inner.send(tensor, to, group, tag)

    def receive(self, out: Tensor, of: int, group: Group, tag: int = 0) -> Waitable:
        return self.inner.receive(out, of, group, tag)

    def all_to_all(self, out: Tensor, parts: Tensor, group: Group) -> Waitable:
        return self.inner.all_to_all(out, parts, group)

    def all_to_all_uneven(self, send: Sequence[Tensor], receive: Sequence[Tensor], group: Group) -> Waitable:
        return self.inner.all_to_all_uneven(send, receive, group)

    def rotate(self, sent: Sequence[Tensor], received: Sequence[Tensor], group: Group, tag: int) -> list[Waitable]:
        return self.inner.rotate(sent, received, group, tag)

    def wait_at_most(self, seconds: float) -> None:
        self.inner.wait_at_most(seconds)


def encode(name: EncodingName, x: Tensor) -> Tensor:
    """Return the bytes of a tensor, padded with zeros to whole units."""
    unit = UNITS[name].elements
    flat = x.detach().reshape(-1).float()
    units = torch.nn.functional.pad(flat, (0, -flat.numel() % unit)).view(-1, unit)
    return ENCODINGS[name].encode(units).reshape(-1)


def decode(name: EncodingName, sent: Tensor, elements: int) -> Tensor:
    """Return the first numbers of encoded bytes, in fp32."""
    return ENCODINGS[name].decode(sent.view(-1, UNITS[name].sent_bytes)).reshape(-1)[:elements]


def _as_bytes(x: Tensor) -> Tensor:
    return x.contiguous().view(torch.uint8)


def _of_bytes(sent: Tensor, dtype: torch.dtype) -> Tensor:
    return sent.contiguous().view(dtype)


def _encode_bf16(x: Tensor) -> Tensor:
    return _as_bytes(x.to(torch.bfloat16))


def _decode_bf16(sent: Tensor) -> Tensor:
    return _of_bytes(sent, torch.bfloat16).float()


def _encode_fp8(x: Tensor) -> Tensor:
    """A block is divided by the least power of two that leaves no number above the largest of E4M3."""
    largest = x.abs().amax(-1, keepdim=True)
    exponent = torch.ceil(torch.log2(largest / E4M3_MAX)).clamp(MIN_EXPONENT, MAX_EXPONENT)
    # The logarithm is rounded: where it was too small, the next power of two is taken.
    exponent += largest > E4M3_MAX * torch.exp2(exponent)
    codes = (exponent + 127).nan_to_num(NAN_EXPONENT).to(torch.uint8)
    codes = torch.where(largest.isfinite(), codes, NAN_EXPONENT)
    return torch.cat([_as_e4m3(x * torch.exp2(-exponent)), codes], -1)


def _decode_fp8(sent: Tensor) -> Tensor:
    codes = sent[:, FP8_BLOCK:].float()
    scales = torch.exp2(codes - 127).masked_fill(codes == NAN_EXPONENT, torch.nan)
    return _of_bytes(sent[:, :FP8_BLOCK], E4M3).float() * scales


def _as_e4m3(x: Tensor) -> Tensor:
    """Return the codes of numbers. Casts beyond the range differ between versions of torch, so the range is kept."""
    return _as_bytes(x.clamp(-E4M3_MAX, E4M3_MAX).to(E4M3))


def _encode_taco(x: Tensor) -> Tensor:
    blocks = x.view(len(x), -1, TACO_BLOCK)
    largest = blocks.abs().amax(-1)
    whole = largest.amax(-1, keepdim=True)
    own = (largest / whole.clamp(min=torch.finfo(torch.float32).tiny) * E4M3_MAX).clamp(max=E4M3_MAX).to(E4M3)
    scales = own.float() * (whole / E4M3_MAX) / E4M3_MAX
    codes = _as_e4m3(torch.where(scales.unsqueeze(-1) > 0, blocks / scales.unsqueeze(-1), 0))
    whole = torch.where(whole.isfinite(), whole, torch.nan)
    return torch.cat([codes.view(len(x), -1), _as_bytes(own), _as_bytes(whole)], -1)


def _decode_taco(sent: Tensor) -> Tensor:
    codes, own, whole = sent.split([TACO_UNIT, TACO_UNIT // TACO_BLOCK, 4], -1)
    scales = _of_bytes(own, E4M3).float() * (_of_bytes(whole, torch.float32) / E4M3_MAX) / E4M3_MAX
    return (_of_bytes(codes, E4M3).float().view(len(sent), -1, TACO_BLOCK) * scales.unsqueeze(-1)).flatten(1)


@cache
def hadamard(size: int, device: torch.device) -> Tensor:
    """Return the orthonormal Hadamard matrix of a power of two, in fp32."""
    one = torch.ones(1, 1, device=device)
    while len(one) < size:
        one = torch.cat([torch.cat([one, one], 1), torch.cat([one, -one], 1)])
    norm: float = size**0.5
    return one / norm


def _rotated(x: Tensor) -> Tensor:
    """Each block times the Hadamard matrix, which is its own inverse."""
    return (x.view(-1, TACO_BLOCK) @ hadamard(TACO_BLOCK, x.device)).view(x.shape)


def _encode_int8(x: Tensor) -> Tensor:
    scale = x.abs().amax(-1, keepdim=True) / INT8_MAX
    codes = torch.where(scale > 0, x / scale, 0).nan_to_num(0).round().clamp(-INT8_MAX, INT8_MAX).to(torch.int8)
    return torch.cat([_as_bytes(codes), _as_bytes(torch.where(scale.isfinite(), scale, torch.nan))], -1)


def _decode_int8(sent: Tensor) -> Tensor:
    codes, scale = sent.split([INT8_BLOCK, 4], -1)
    return _of_bytes(codes, torch.int8).float() * _of_bytes(scale, torch.float32)


ENCODINGS: dict[EncodingName, Encoding] = {
    "bf16": Encoding(_encode_bf16, _decode_bf16),
    "fp8": Encoding(_encode_fp8, _decode_fp8),
    "taco": Encoding(_encode_taco, _decode_taco),
    "taco-hadamard": Encoding(lambda x: _encode_taco(_rotated(x)), lambda sent: _rotated(_decode_taco(sent))),
    "int8": Encoding(_encode_int8, _decode_int8),
}
