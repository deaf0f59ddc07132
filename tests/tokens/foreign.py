"""Third-party tokenizers and the files next to them."""

import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers


def llama_words(texts: list[str], *, opens: bool, size: int = 600) -> str:
    """Build a Llama-like tokenizer: words begin with ▁, unknown characters are bytes, and <s> comes first if
    requested."""
    library = tokenizers.Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    library.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    library.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    special = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=special, show_progress=False)
    library.train_from_iterator(texts, trainer)
    if opens:
        library.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
        )
    tree = json.loads(library.to_str())
    tree["added_tokens"] = tree["added_tokens"][:3]  # byte tokens are not special
    return json.dumps(tree)


def folder_of(folder: Path, words: str, **files: Any) -> Path:
    """Write a folder with this tokenizer.json and further files, given by their stems."""
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(words)
    for stem, tree in files.items():
        (folder / f"{stem}.json").write_text(json.dumps(tree))
    return folder
