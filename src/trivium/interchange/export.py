"""Export a checkpoint as a Hugging Face folder, which is verified before it gets its name."""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from trivium.checkpoint.durable import check_room
from trivium.checkpoint.load import Checkpoint
from trivium.checkpoint.pieces import TORCH_DTYPES, Entry, write_pieces
from trivium.errors import CheckpointError, ConfigError
from trivium.families.common.family import Tensors, families
from trivium.interchange.names import INDEX, WEIGHTS, Twin, config_of, twins
from trivium.model.whole import WholeModel
from trivium.plan.model_shape import ModelShape
from trivium.plan.parameters import Box, count, parameters
from trivium.plan.plan import Plan
from trivium.plan.precision import Dtype
from trivium.provenance import publishing_new, write_json
from trivium.seeds import generator_for
from trivium.tokens.chat.encode import end_of_turn_ids
from trivium.tokens.chat.template import FILE as TEMPLATE
from trivium.tokens.chat.template import read_template
from trivium.tokens.marks import CONFIG, GENERATION, MAP, ids_of
from trivium.tokens.tokenizer import Tokenizer, load_tokenizer
from trivium.untrusted import read_json

FILE_BYTES = 5_000_000_000  # transformers' default size of a file
TOLERANCE = 1e-5  # maximum difference of logits, relative to the largest logit if that is above 1
_PRECISIONS: tuple[Dtype, ...] = ("fp32", "fp64")  # precisions of the comparison, tried until the logits agree
# The comparison uses the full sequence if each model then takes a few seconds and a few GB. Otherwise the sequence
# is halved, down to MIN_POSITIONS.
ROWS, MIN_POSITIONS, MAX_FLOPS, MAX_BYTES = 2, 64, 1e12, 2 << 30
NAMES = {"F64": "float64", "F32": "float32", "BF16": "bfloat16", "F16": "float16"}


@dataclass(frozen=True)
class Exported:
    """A finished export.

    difference: the largest difference of logits (see TOLERANCE). positions: compared positions of each row, the
    full sequence if the model is small enough.
    """

    folder: Path
    difference: float
    files: int
    positions: int


def export_hf(source: Checkpoint, folder: str | Path, *, tokenizer: str | Path | None) -> Exported:
    """Write weights, config, generation config and tokenizer of a verified checkpoint into a new folder.

    A chat template beside the tokenizer goes with it. Vocabulary padding is not exported. Raises ConfigError if the
    folder exists or no Hugging Face architecture computes the same, and CheckpointError if the tokenizer is not the one
    of the training or the exported logits differ.
    """
    folder = Path(folder)
    if folder.exists():
        raise ConfigError(f"{folder} exists already; name a new folder")
    plan = source.plan.model_copy(update={"model": source.plan.model.in_use})
    if plan.model.adapters:
        merged = shlex.quote(f"{folder}-merged")
        raise ConfigError(
            f"{source.directory} has adapters, and no architecture of Hugging Face has them in its layers; merge them "
            f"first: `trivium checkpoint merge {shlex.quote(str(source.directory))} --to {merged}`; or write them "
            f"alone: --format peft"
        )
    words = None if tokenizer is None else load_tokenizer(Path(tokenizer))
    if words is not None:
        source.refuse_other_tokenizer(str(tokenizer), words.sha256, words.vocabulary)
    dtype = source.manifest["tensors"]["weights/embedding.tokens.weight"]["dtype"]
    marks = _marks(source, plan.model, words)
    config = config_of(plan.model, dtype=NAMES[dtype]) | marks
    with publishing_new(folder, "name a new folder") as partial:
        files = _write_weights(source, plan, partial)
        write_json(partial / "config.json", config)
        _write_words(partial, plan.model, _with_template(partial, tokenizer, marks, words), words)
        positions = compared_positions(plan.model)
        difference = _difference(source, plan, partial, positions)
    return Exported(folder, difference, files, positions)


def _write_weights(source: Checkpoint, plan: Plan, folder: Path) -> int:
    entries = [entry for twin in twins(plan.model) for entry in _entries(source, twin)]
    total = sum(entry.bytes for entry in entries)
    check_room(folder, total, "name another folder")
    files: list[list[Entry]] = [[]]
    for entry in entries:
        if files[-1] and sum(e.bytes for e in files[-1]) + entry.bytes > FILE_BYTES:
            files.append([])
        files[-1].append(entry)
    names = [f"model-{n + 1:05d}-of-{len(files):05d}.safetensors" for n in range(len(files))]
    names = [WEIGHTS] if len(files) == 1 else names
    for name, part in zip(names, files, strict=True):
        write_pieces(folder / name, part, about={"format": "pt"})
    if len(files) > 1:
        where = {e.key: name for name, part in zip(names, files, strict=True) for e in part}
        index = {"metadata": {"total_size": total}, "weight_map": where}
        write_json(folder / INDEX, index)
    return len(files)


def _entries(source: Checkpoint, twin: Twin) -> Iterator[Entry]:
    """Yield the exported tensors of a region. It is read again for each, so that only one is in memory."""
    name = f"weights/{twin.ours.name}"
    dtype = TORCH_DTYPES[source.manifest["tensors"][name]["dtype"]]
    shapes = [tuple(x.shape) for x in twin.to_hf(torch.empty(twin.box.shape, device="meta"))]
    for number, (key, there) in enumerate(zip(twin.theirs, shapes, strict=True)):

        def values(number: int = number) -> torch.Tensor:
            return twin.to_hf(source.read(name, twin.box, dtype))[number]

        yield Entry(key, dtype, there, values)


def _marks(source: Checkpoint, model: ModelShape, words: Tokenizer | None) -> dict[str, Any]:
    """Return the special token ids as Hugging Face names them.

    An imported model keeps those of its original folder, unless the tokenizer has another end-of-text id.
    Otherwise the ids are the tokenizer's, or, without a tokenizer, the model's own. The model's id comes last
    because it is unused if documents are not separated.
    """
    said: dict[str, Any] | None = source.manifest.get("imported_from", {}).get("marks")
    if words is not None:
        marks = {"bos_token_id": words.before_text, "eos_token_id": words.end_of_text}
        return marks | said if said and words.end_of_text in ids_of(said.get("eos_token_id")) else marks
    if said is not None:
        return said
    return {"bos_token_id": model.end_of_text, "eos_token_id": model.end_of_text}


def _with_template(
    folder: Path, tokenizer: str | Path | None, marks: dict[str, Any], words: Tokenizer | None
) -> dict[str, Any]:
    """Copy the chat template beside a tokenizer.json, if there is one, and return the marks with the id that ends an
    answer as one more end, at which transformers then stops."""
    if tokenizer is None or words is None:
        return marks
    beside = Path(tokenizer) if Path(tokenizer).is_dir() else Path(tokenizer).parent
    if not (beside / TEMPLATE).is_file():
        return marks
    template = read_template(beside, words)
    template.save(folder)
    ends, own = ids_of(marks.get("eos_token_id")), end_of_turn_ids(template, words)
    return marks | {"eos_token_id": [*ends, *own]} if len(own) == 1 and own[0] not in ends else marks


def _write_words(folder: Path, model: ModelShape, marks: Mapping[str, Any], words: Tokenizer | None) -> None:
    fills = next(iter(ids_of(marks.get("eos_token_id"))), None)
    generation = {k: v for k, v in {"pad_token_id": fills, **marks}.items() if v is not None}
    if words is not None:
        (folder / "tokenizer.json").write_text(words.for_others, encoding="utf-8", newline="")
        begin, end = words.marks.begin or words.marks.end, words.marks.end
        named = {"bos_token": begin, "eos_token": end, "unk_token": words.unknown}
        about = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": model.sequence,
            "clean_up_tokenization_spaces": False,  # decoding must not change the text
        }
        write_json(folder / CONFIG, {**about, **named})
        write_json(folder / MAP, named)
    write_json(folder / GENERATION, {**generation, "max_length": model.sequence})


def compared_positions(model: ModelShape) -> int:
    """Return the sequence length, halved until comparing ROWS rows stays within MAX_FLOPS and MAX_BYTES, or
    MIN_POSITIONS."""
    weights = count(model)
    positions = model.sequence
    while positions > MIN_POSITIONS:
        scores = model.heads * positions**2
        flops = ROWS * (2 * weights * positions + 4 * model.layers * model.head_columns * scores)
        if flops <= MAX_FLOPS and 12 * ROWS * (scores + model.vocabulary * positions) <= MAX_BYTES:
            return positions
        positions //= 2
    return min(MIN_POSITIONS, model.sequence)


def _difference(source: Checkpoint, plan: Plan, folder: Path, positions: int) -> float:
    """Return the largest difference between the engine's logits and those of a plain implementation on the folder.

    Both compute in fp32. If that difference is too large, which rounding alone can cause for large weights, both
    compute in fp64, which needs twice the memory.
    """
    shape = (ROWS, positions)
    rows = torch.from_numpy(generator_for(0, "export").integers(0, plan.model.vocabulary, shape))
    for precision in _PRECISIONS:
        ours = _engines(source, plan, precision).logits(rows.tolist())
        theirs = logits(folder, rows, ours.dtype)
        found = float((ours - theirs).abs().max()) if ours.shape == theirs.shape else float("inf")
        if found <= TOLERANCE * max(1.0, float(ours.abs().max())):
            return found
    if not ours.isfinite().all():
        raise CheckpointError(
            f"{source.directory}: the model's own logits are not finite, so that nothing was exported: its weights are "
            f"damaged or training diverged; export an earlier checkpoint"
        )
    raise CheckpointError(
        f"{folder}: logits differ by {found:.3g} in fp64 too, more than {TOLERANCE:g} of the largest; nothing was "
        f"exported: the architecture there does not compute what this model computes, which is a fault of the export: "
        f"please report it with the checkpoint's manifest.json"
    )


def _engines(source: Checkpoint, plan: Plan, precision: Dtype) -> WholeModel:
    model = WholeModel(plan.model, precision=precision, device=torch.device("cpu"))
    for row in parameters(plan.model):
        box = Box(tuple(0 for _ in row.shape), row.shape)
        model.load(row.name, source.read(f"weights/{row.name}", box, model.dtype))
    return model


def logits(folder: Path, tokens: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Compute logits [B, S, vocabulary] of tokens [B, S] from the files alone, as the architecture defines them.

    This verifies the engine and the exporter, so it shares no code with them. dtype: of the computation.
    """
    config = read_json(folder / "config.json")
    (architecture,) = config["architectures"]
    with torch.no_grad():
        return families()[architecture].logits(config, _tensors(folder, dtype), tokens)


def _tensors(folder: Path, dtype: torch.dtype) -> Tensors:
    index = folder / INDEX
    if index.is_file():
        where = read_json(index)["weight_map"]
    else:
        with safe_open(str(folder / WEIGHTS), framework="pt") as file:
            where = dict.fromkeys(file.keys(), WEIGHTS)

    def get(name: str) -> torch.Tensor:
        if name not in where:
            raise CheckpointError(
                f"{folder} has no tensor '{name}', which its architecture reads; nothing was exported, which is a "
                f"fault of the export: please report it with the checkpoint's manifest.json"
            )
        with safe_open(str(folder / where[name]), framework="pt") as file:
            found: torch.Tensor = file.get_tensor(name)
        return found.to(dtype)

    return Tensors(get, frozenset(where))
