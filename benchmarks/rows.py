"""The rows of the benchmark, with the targets they are held to."""

from dataclasses import replace

from contest import Pair, Row
from packed_loop import packed_loop
from setting import HIDDEN_256, HIDDEN_512, TINY, Setting
from torch_peers import ddp, ddp_sharded, dtensor, fsdp, pipelining, three_roads
from trivium_engine import trivium
from zero_bubble import OURS_1F1B, OURS_ZB, share_saved

TWO = {"pipeline": 2}
SIZES = (HIDDEN_256, HIDDEN_512, HIDDEN_256.in_bf16(), HIDDEN_512.in_bf16())


def rows() -> tuple[Row, ...]:
    """Every row that runs in this environment, in the order of the report."""
    stages = [size.with_batch(4, 1) for size in SIZES]
    replicas = [size.with_batch(4, 2) for size in SIZES]
    return (
        _tensor(TINY, None),
        *(_tensor(size, 1.25) for size in SIZES),
        _row_chunks(HIDDEN_256),
        _row_chunks(HIDDEN_512),
        _pipeline(TINY.with_batch(8, 2), (4, 4), 1.0),
        *(_pipeline(size, (3, 1), 1.0) for size in stages),
        _zero_bubble(TINY.with_batch(8, 2), (4, 4), (2, 2, 2, 2), 1.3),
        *(_zero_bubble(size, (3, 1), (1, 1, 1, 1), 1.3) for size in stages),
        _own_zero_bubble(2),
        _own_zero_bubble(4),
        _data(TINY.with_batch(8, 4), 1),
        *(_data(size, 1) for size in replicas),
        _sharded_weights(TINY.with_batch(8, 4), None),
        *(_sharded_weights(size, 1.15) for size in replicas),
        _three_roads(TINY.with_batch(16, 2), (4, 4), 2.4),
        _three_roads(HIDDEN_256.with_batch(8, 1), (3, 1), 1.7),
        *(_packed(replace(size, sequence=2048, documents=400)) for size in (HIDDEN_256, HIDDEN_256.in_bf16())),
    )


def _tensor(setting: Setting, target: float | None) -> Row:
    return Row(
        name=f"tensor + sequence {setting.name}",
        ranks=2,
        setting=setting,
        contestants={"trivium": trivium(layout={"tensor": 2}, sequence_parallel=True, zero=0), "DTensor": dtensor},
        pairs=(Pair("trivium", "DTensor", target),),
        says="Both split matrices, vocabulary, loss and, between them, the sequence. DTensor leaves gradients of "
        "norms partial and sums them in the optimizer; Trivium sums them in one bucket, and also computes the "
        "global gradient norm.",
    )


def _packed(setting: Setting) -> Row:
    setting = setting.with_batch(1, 1)
    return Row(
        name=f"packed documents {setting.name}",
        ranks=1,
        setting=setting,
        contestants={"trivium": trivium(zero=0), "plain loop behind a mask": packed_loop},
        pairs=(Pair("trivium", "plain loop behind a mask"),),
        says=f"{setting.sequence} positions of documents of about {setting.documents} tokens that do not see each "
        "other. The peer's attention, PyTorch's, takes a mask of all positions by all; Trivium's leaves out what no "
        "query of a block sees.",
    )


def _row_chunks(setting: Setting) -> Row:
    """Row-split products cut into chunks against the same uncut."""
    shared = {"layout": {"tensor": 2}, "sequence_parallel": True, "zero": 0}
    chunks = (2, 4)
    return Row(
        name=f"row chunks {setting.name}",
        ranks=2,
        setting=setting,
        contestants={"uncut": trivium(**shared), **{f"{n} chunks": trivium(**shared, row_chunks=n) for n in chunks}},
        pairs=tuple(Pair(f"{n} chunks", "uncut") for n in chunks),
        says="Both Trivium, tensor and sequence parallel. Each chunk of a row-split product is reduced while the next "
        "is computed; the ranks' own cores move the bytes, so that there is little to hide behind.",
    )


def _pipeline(setting: Setting, layers: tuple[int, int], target: float) -> Row:
    return Row(
        name=f"1F1B {setting.name}",
        ranks=2,
        setting=setting,
        contestants={
            "trivium": trivium(layers, layout=TWO, schedule="1f1b", zero=0),
            "trivium 1f1b-split": trivium(layers, layout=TWO, schedule="1f1b-split", zero=0),
            "torch Schedule1F1B": pipelining("1f1b", layers),
        },
        pairs=(Pair("trivium", "torch Schedule1F1B", target), Pair("trivium 1f1b-split", "torch Schedule1F1B", target)),
        says=f"Layers {layers} per stage, {setting.micro_batches()} micro-batches. Trivium also sends the loss to "
        "every rank and computes the global gradient norm. 1f1b-split is the same order; a stage sends its input's "
        "gradient before it computes its weights'.",
    )


def _zero_bubble(setting: Setting, two: tuple[int, int], four: tuple[int, int, int, int], target: float) -> Row:
    return Row(
        name=f"zero-bubble {setting.name}",
        ranks=2,
        setting=setting,
        contestants={
            "trivium zb-h1": trivium(two, layout=TWO, schedule="zb-h1", zero=0),
            "torch ScheduleInterleavedZeroBubble": pipelining("zero-bubble", two),
            "trivium zb-v": trivium(four, layout={**TWO, "chunks": 2}, schedule="zb-v", zero=0),
            "torch ScheduleZBVZeroBubble": pipelining("zbv", four),
            "trivium zb-turns": trivium(four, layout={**TWO, "chunks": 2}, schedule="zb-turns", zero=0),
        },
        pairs=(
            Pair("trivium zb-h1", "torch ScheduleInterleavedZeroBubble", target),
            Pair("trivium zb-v", "torch ScheduleZBVZeroBubble", target),
            Pair("trivium zb-turns", "torch ScheduleZBVZeroBubble", target),
        ),
        says=f"Layers {two} and {four} per stage, {setting.micro_batches()} micro-batches. The first pair holds one "
        "stage per rank (ZB-H1, in PyTorch the ZB1P of its interleaved schedule), the second two in a V. zb-turns is "
        "that V with the head, which PyTorch's schedules leave with the last layers, taken by both ranks in turns: "
        "its layers are those of the peer, the rank that computes a loss is not.",
    )


def _own_zero_bubble(micro_batches: int) -> Row:
    # Five layers as 3 + 2: the head weighs about 1.3 layers, so the stages are nearly equal.
    setting = Setting("hidden 256 with 5 layers", 256, 5, 8, 4096, 256, sequences=2 * micro_batches, micro=2)
    return Row(
        name=f"our ZB-H1 against our 1F1B with {micro_batches} micro-batches",
        ranks=2,
        setting=setting,
        contestants={
            OURS_1F1B: trivium((3, 2), layout=TWO, schedule="1f1b", zero=0),
            OURS_ZB: trivium((3, 2), layout=TWO, schedule="zb-h1", zero=0),
        },
        pairs=(Pair(OURS_ZB, OURS_1F1B),),
        says="The share of the pipeline's time that the table says the order saves, with the measured durations of "
        "F, I and W, beside the share saved; to reach: two thirds of it.",
        extra=share_saved,
    )


def _data(setting: Setting, target: float) -> Row:
    two = {"data": 2}
    return Row(
        name=f"replicas {setting.name}",
        ranks=2,
        setting=setting,
        contestants={
            "trivium ZeRO-1": trivium(layout=two, zero=1),
            "trivium ZeRO-0": trivium(layout=two, zero=0),
            "DDP": ddp,
            "DDP + ZeroRedundancyOptimizer": ddp_sharded,
        },
        pairs=(
            Pair("trivium ZeRO-1", "DDP", target),
            Pair("trivium ZeRO-0", "DDP"),
            Pair("trivium ZeRO-1", "DDP + ZeroRedundancyOptimizer"),
        ),
        says="One micro-batch per replica. All average gradients in buckets during backward; ZeRO-1 then updates a "
        "half each and gathers the weights, DDP and ZeRO-0 update everything twice over.",
    )


def _sharded_weights(setting: Setting, target: float | None) -> Row:
    return Row(
        name=f"sharded weights {setting.name}",
        ranks=2,
        setting=setting,
        contestants={"trivium ZeRO-3": trivium(layout={"data": 2}, zero=3), "FSDP2 fully_shard": fsdp},
        pairs=(Pair("trivium ZeRO-3", "FSDP2 fully_shard", target),),
        says="Weights gathered per block and freed after use, in forward and again in backward; the next block's "
        "prefetched.",
    )


def _three_roads(setting: Setting, layers: tuple[int, int], target: float) -> Row:
    layout = {"pipeline": 2, "data": 2, "tensor": 2}
    return Row(
        name=f"2 x 2 x 2 {setting.name}",
        ranks=8,
        setting=setting,
        contestants={
            "trivium ZeRO-1": trivium(layers, layout=layout, schedule="1f1b", sequence_parallel=True, zero=1),
            "DTensor + 1F1B + replicate": three_roads(layers, "replicate"),
            "DTensor + 1F1B + FSDP2": three_roads(layers, "fsdp"),
        },
        pairs=(
            Pair("trivium ZeRO-1", "DTensor + 1F1B + replicate", target),
            Pair("trivium ZeRO-1", "DTensor + 1F1B + FSDP2", target),
        ),
        says=f"Layers {layers} per stage, {setting.micro_batches(2)} micro-batches per replica. `replicate` is "
        "PyTorch's data parallelism for DTensor models (DDP itself takes none), FSDP2 keeps whole weights within "
        "a step as torchtitan does under a pipeline. Eight ranks share this machine's cores.",
        fewer_rounds=2,
    )
