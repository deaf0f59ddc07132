"""Import a Hugging Face folder as a checkpoint, from which training can start in any layout."""

import filecmp
import hashlib
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open

from trivium.checkpoint.pieces import TORCH_DTYPES, Part
from trivium.checkpoint.reshard import write_whole
from trivium.config import to_tree
from trivium.errors import ConfigError, DataError
from trivium.families.common.hf_config import read_settings, refuse_other_kinds
from trivium.hub import name_of
from trivium.interchange.names import INDEX, WEIGHTS, Twin, family_named, marks_of, shape_of, twins
from trivium.plan.batch import Batch
from trivium.plan.model_shape import ModelShape
from trivium.plan.plan import Plan
from trivium.plan.precision import Dtype, Precision
from trivium.provenance import file_sha256
from trivium.tokens.chat.template import FILE as TEMPLATE
from trivium.tokens.marks import CONFIG, GENERATION, MAP, ids_of, tree_of
from trivium.tokens.tokenizer import FILE, given_tokenizer
from trivium.untrusted import check_regular, open_regular

_OF_A_LAYER = re.compile(r"\b(?:h|layers)\.\d+\.")
_OF_ATTENTION = ("attention_dropout", "attn_pdrop")
_DROPOUTS = (*_OF_ATTENTION, "embd_pdrop", "resid_pdrop", "hidden_dropout")
_TO_LAYER = re.compile(rf".*?{_OF_A_LAYER.pattern}")
_CONSTANTS = (".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq")  # that old folders store
_OURS: dict[str, Dtype] = {"F64": "fp64", "F32": "fp32", "BF16": "bf16", "F16": "fp16"}
_SAMPLED_BLOCKS, _SAMPLED_BLOCK_BYTES = 64, 64 << 10  # of each file


class Stored(NamedTuple):
    """The file of a tensor, and its dtype there."""

    file: Path
    dtype: str


def import_hf(folder: str | Path, root: str | Path) -> Path:
    """Write the weights in `folder` as the checkpoint of step 0 under `root`, and return its directory.

    The tokenizer's files and generation_config.json are copied into `root`, where `generate` and others find
    them. Raises DataError if the folder is incomplete or its architecture is not supported, and ConfigError if
    `root` contains a step 0 or other tokenizer files already.
    """
    folder, root = Path(folder), Path(root)
    final = root / "step-00000000"
    if final.exists():
        raise ConfigError(f"{final} exists already; choose another --to")
    config = read_settings(folder / "config.json")
    for name in tokenizer_files(folder):
        if (root / name).is_file() and not filecmp.cmp(folder / name, root / name, shallow=False):
            raise ConfigError(f"{root / name} exists already and differs from {folder / name}; choose another --to")
    model = shape_of(config, str(folder / "config.json"))
    if not ids_of(config.get("eos_token_id")):
        model = model.model_copy(update={"end_of_text": _end_beside(folder, model)})
    stored = _files(folder)
    if model.layers > len(stored):  # checked before a parameter table for a wrong number of layers is built
        raise DataError(
            f"{folder}: config.json says {model.layers} layers, and the files hold {len(stored)} tensors; they do not "
            f"belong together: download the folder again"
        )
    family = family_named(config, str(folder / "config.json"))
    rows, names = list(twins(model, family)), family.names(model)
    # There are at most as many layers as tensors, whatever config.json says.
    besides = family.besides({**family.unsaid, **config})[: len(stored)]
    prefixes = {f"{names.layer.format(layer)}." for layer in besides}
    left_out = {name: found[0] for name in stored if (found := _TO_LAYER.match(name)) and found[0] in prefixes}
    _refuse_unused(stored.keys() - left_out.keys(), rows, folder)
    # Some folders omit the prefix of the inner model.
    where = {f"{prefix}{n}": p for n, p in stored.items() for prefix in (names.prefix,)} | stored
    for twin in rows:
        for name in twin.theirs:
            if name not in where:
                raise DataError(f"{folder} has no tensor '{name}', which {twin.ours.name} is made of")
    dtype = _dtype(where, rows, folder)
    plan = Plan(model=model, batch=Batch(sequences=1), precision=Precision(weights=_OURS[dtype])).checked()
    parts = [_part(twin, where, folder, TORCH_DTYPES[dtype]) for twin in rows]
    head = names.ends["head.weight"]
    if model.head == "tied" and head in where:
        _refuse_another_head(where, head, parts, folder)
    about: dict[str, Any] = {
        "samples": 0,
        "tokens_seen": 0,
        "updates": 0,
        "seed": None,
        "plan": to_tree(plan),
        "data": {"tokenizer_sha256": file_sha256(folder / FILE)} if (folder / FILE).is_file() else {},
        "imported_from": {
            "folder": name_of(folder),
            "sampled_sha256": sampled_sha256(folder),
            "architecture": config["architectures"],
            "marks": marks_of({**config, **_ends_of_texts(folder)}),
            "dropouts_left_out": _dropouts_left_out(config, model),
            "left_out": dict(sorted(Counter(left_out.values()).items())),
        },
    }
    root.mkdir(parents=True, exist_ok=True)
    for name in tokenizer_files(folder):
        shutil.copyfile(folder / name, root / name)
    return write_whole(root, 0, about, [parts])


def sampled_sha256(folder: Path) -> str:
    """Return a hash of the sizes of a folder's weight files and of blocks spread over them: it distinguishes models
    without reading all of their weights."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            digest.update(f"{path.name} {size}\n".encode())
            for n in range(_SAMPLED_BLOCKS):
                file.seek(size * n // _SAMPLED_BLOCKS)
                digest.update(file.read(_SAMPLED_BLOCK_BYTES))
    return digest.hexdigest()


def tokenizer_files(folder: Path) -> list[str]:
    """Return the names of the tokenizer's, template's and generation's files in a folder; [] without tokenizer.json."""
    names = [name for name in (FILE, CONFIG, MAP, GENERATION, TEMPLATE) if (folder / name).is_file()]
    return names if FILE in names else []


def _dtype(where: Mapping[str, Stored], rows: Sequence[Twin], folder: Path) -> str:
    """Return the dtype that represents all weights exactly; norms may have a wider dtype than matrices. Parameters that
    are wide anyway do not matter."""
    every = {where[name].dtype: name for twin in rows for name in twin.theirs}
    used = {where[name].dtype: name for twin in rows for name in twin.theirs if not twin.ours.wide}
    unknown = sorted(every.keys() - _OURS.keys())
    if unknown:
        raise DataError(f"{folder}: tensor '{every[unknown[0]]}' is {unknown[0]}; known: {', '.join(_OURS)}")
    widest = next(dtype for dtype in _OURS if dtype in used)
    return "F32" if widest == "BF16" and "F16" in used else widest  # neither of the two can represent the other


def _part(twin: Twin, where: Mapping[str, Stored], folder: Path, dtype: torch.dtype) -> Part:
    dtype = torch.promote_types(dtype, torch.float32) if twin.ours.wide else dtype
    wanted = [tuple(x.shape) for x in twin.to_hf(torch.empty(twin.box.shape, device="meta"))]

    def values() -> torch.Tensor:
        found = tuple(_read(where[name].file, name) for name in twin.theirs)
        for name, there, right in zip(twin.theirs, found, wanted, strict=True):
            if tuple(there.shape) != right:
                raise DataError(
                    f"{folder}: '{name}' is {tuple(there.shape)}, and by config.json it must be {right}; they do not "
                    f"belong together: download the folder again"
                )
        return twin.from_hf(found).to(dtype)

    return Part(f"weights/{twin.ours.name}", twin.ours.shape, twin.box, dtype, values)


def _files(folder: Path) -> dict[str, Stored]:
    """Return the file and dtype of every tensor."""
    found: dict[str, Stored] = {}
    for path in _named(folder):
        try:
            check_regular(path)
            with safe_open(str(path), framework="pt") as file:
                found |= {n: Stored(path, file.get_slice(n).get_dtype()) for n in file.keys()}  # noqa: SIM118 (no dict)
        except (OSError, SafetensorError, UnicodeError) as error:
            raise DataError(f"{path} cannot be read: {error}; download it again") from None
    return found


def _named(folder: Path) -> list[Path]:
    """Return the weight files, as transformers choose them: the single file, those of the index, or all."""
    whole, index = folder / WEIGHTS, folder / INDEX
    if whole.is_file():
        return [whole]
    if not index.is_file():
        found = sorted(folder.glob("*.safetensors"))
        if not found:
            raise DataError(f"{folder} holds no .safetensors files; other formats can run code and are not read")
        return found
    listed = read_settings(index).get("weight_map")
    names = list(listed.values()) if isinstance(listed, dict) else []
    if not names or any(not isinstance(name, str) or name != Path(name).name for name in names):
        raise DataError(f"{index} has no weight_map of tensors to files beside it; download the folder again")
    return [folder / name for name in sorted(set(names))]


def _refuse_unused(held: Iterable[str], rows: Iterable[Twin], folder: Path) -> None:
    """Raise DataError if a layer's tensor would be ignored, because the model would then compute something else."""
    used = {name for twin in rows for name in twin.theirs}
    used |= {name.partition(".")[2] for name in used}
    unused = sorted(n for n in held if _OF_A_LAYER.search(n) and n not in used and not n.endswith(_CONSTANTS))
    if unused:
        raise DataError(
            f"{folder} has {len(unused)} tensors of layers that no part of the model of its config.json uses, the "
            f"first '{unused[0]}'; they do not belong together: download the folder again"
        )


def _refuse_another_head(where: Mapping[str, Stored], head: str, parts: Iterable[Part], folder: Path) -> None:
    """Raise DataError if a tied model has a head that differs from its embedding; transformers would not tie them."""
    table = next(part for part in parts if part.name == "weights/embedding.tokens.weight")
    if not torch.equal(_read(where[head].file, head).to(table.dtype), table.values()):
        raise DataError(
            f"{folder / 'config.json'}: tie_word_embeddings is true, by its default if it is not there, and the files "
            f"hold another {head} than the embedding; set tie_word_embeddings to false, or take that tensor out"
        )


def _read(path: Path, name: str) -> torch.Tensor:
    with safe_open(str(path), framework="pt") as file:
        held = set(file.keys())
        found: torch.Tensor = file.get_tensor(name if name in held else name.partition(".")[2])
    return found


def _dropouts_left_out(config: Mapping[str, Any], model: ModelShape) -> dict[str, Any]:
    """Return the dropouts of a config.json by their names, without those that equal `plan.model.dropout`, which is that
    of embeddings and of the outputs of both halves of a layer."""
    given = {name: config[name] for name in _DROPOUTS if config.get(name)}
    return {name: p for name, p in given.items() if name in _OF_ATTENTION or p != model.dropout}


def _ends_of_texts(folder: Path) -> dict[str, Any]:
    """Return the `eos_token_id` of generation_config.json, which transformers prefer to that of config.json."""
    path = folder / GENERATION
    found = {key: value for key, value in tree_of(path).items() if key == "eos_token_id" and value is not None}
    refuse_other_kinds(found, str(path))
    return found


def _end_beside(folder: Path, model: ModelShape) -> int:
    """Return the end-of-text id of the tokenizer's files, if config.json does not have one; 0 if neither does."""
    try:
        end = given_tokenizer(str(folder)).end_of_text
    except (ConfigError, DataError):
        return 0
    return end if end < model.vocabulary else 0
