"""Prompt files (text, JSON lines, or YAML with sampling settings) and the prompts shipped with the package."""

import re
from collections.abc import Mapping
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field

from trivium.config import Config, build, build_named, mapping_of_yaml, merge, shipped, shipped_names, to_tree
from trivium.errors import ConfigError, DataError, nearest
from trivium.jsonlines import read_rows, split_lines
from trivium.serving.config import Drawing
from trivium.tokens.manifest import MANIFEST, open_shards
from trivium.tokens.shards import TokenShard
from trivium.tokens.split import VALIDATION
from trivium.tokens.tokenizer import Tokenizer, load_tokenizer
from trivium.units import plain
from trivium.untrusted import CONFIG_BYTES, DOCUMENT_BYTES, read_bytes

FOLDER = "presets/prompts"  # inside the package
YAML = (".yaml", ".yml")


# Used if no held-out documents are available. Any English text can continue these.
NEUTRAL = ("The", "In the beginning,", "There is")
HELD_OUT_PROMPTS = 3
MAX_PROMPT_WORDS = 8  # a shorter document becomes no prompt
READ_TOKENS = 64  # tokens of a document that are decoded to find the words
# Two or more full words of the first line, or the first 16 characters of a text without spaces.
_BEGINNING = re.compile(rf"\s*(\S+(?:[^\S\n]+\S+){{1,{MAX_PROMPT_WORDS - 1}}}(?=\s)|\S{{16}})")


def default_prompts(tokenizer_file: Path) -> tuple[str, ...]:
    """Return the first words of held-out documents, read from the tokens next to a run's tokenizer.

    Documents are taken from each source in rotation, so that every kind of text is included. Returns neutral
    prompts if there are no such tokens, or no document begins with two words.
    """
    folder = tokenizer_file.parent
    if not (folder / MANIFEST).is_file():
        return NEUTRAL
    tokenizer = load_tokenizer(tokenizer_file)
    try:
        shards = open_shards(folder, VALIDATION)
    except DataError:  # The tokens are optional here.
        return NEUTRAL
    texts = [_first_texts(shard, tokenizer) for shard in shards.values()]
    in_turn = chain.from_iterable(zip_longest(*texts))
    found = (_BEGINNING.match(text) for text in in_turn if text is not None)
    prompts = dict.fromkeys(match[1] for match in found if match is not None)
    return tuple(islice(prompts, HELD_OUT_PROMPTS)) or NEUTRAL


def _first_texts(shard: TokenShard, tokenizer: Tokenizer) -> list[str]:
    """Return the beginnings of a shard's first documents, more than needed, because some contain no words."""
    opening, texts = len(tokenizer.opening), []
    for number in range(min(len(shard), 8 * HELD_OUT_PROMPTS)):
        ids = shard[number][opening : opening + READ_TOKENS].tolist()
        texts.append(tokenizer.decode_text(ids))
    return texts


class PromptFile(Config):
    """Prompts and their sampling settings. Settings that the file omits come from the config."""

    remedy: ClassVar[str] = "give it in the file"

    prompts: Annotated[tuple[str, ...], Field(min_length=1)]
    sampling: Drawing | None = None
    about: str = ""


def categories() -> list[str]:
    """Return the names of the shipped prompt files, one per category of the paper's examples."""
    return shipped_names(FOLDER)


def read_prompts(name_or_path: str) -> PromptFile:
    """Read shipped prompts by name, or a file: .yaml, .jsonl with {"prompt"} on each line, or text with a prompt per
    line.

    Raises DataError for a file that is missing, damaged or empty, and ConfigError for unknown fields in YAML.
    """
    ours, path = shipped(f"{FOLDER}/{name_or_path}.yaml"), Path(name_or_path)
    if ours.is_file():
        return _of_yaml(ours.read_text(encoding="utf-8"), name_or_path)
    if not path.suffix and not path.exists():
        raise ConfigError(f"--file {name_or_path}: no such prompts; {nearest(name_or_path, categories())}")
    if path.suffix == ".jsonl":
        rows = read_rows(path, named=f"--file {path}", remedy="correct the file, or give another one")
        prompts = [_of_json(path, number, row) for row, number in rows]
    else:
        try:
            content = read_bytes(path, CONFIG_BYTES if path.suffix in YAML else DOCUMENT_BYTES)
            text = content.decode("utf-8-sig")
        except OSError as error:
            raise DataError(f"--file {path} cannot be read: {error.strerror}; give a file that exists") from None
        except UnicodeDecodeError:
            raise DataError(f"--file {path} is not UTF-8 text; give .txt, .jsonl or .yaml") from None
        if path.suffix in YAML:
            return _of_yaml(text, str(path))
        prompts = [line.decode("utf-8") for line in split_lines(content)]
    if not prompts:
        raise DataError(f"--file {path} contains no prompt; write one a line")
    return PromptFile(prompts=tuple(prompts))


def drawing_for(file: PromptFile, config: Drawing, given: Mapping[str, Any]) -> Drawing:
    """Return the sampling settings: those of the command line override the file's, which override the config's."""
    own = {} if file.sampling is None else file.sampling.model_dump(exclude_unset=True)
    return build(Drawing, merge(merge(to_tree(config), own), given))


def _of_yaml(text: str, where: str) -> PromptFile:
    tree = mapping_of_yaml(text, f"--file {where}", "a prompt file is a mapping with prompts", DataError)
    return build_named(PromptFile, tree, f"--file {where}")


def _of_json(path: Path, number: int, tree: Any) -> str:
    if not isinstance(tree, dict) or not isinstance(tree.get("prompt"), str):
        raise DataError(
            f'--file {path}, line {number}: {plain(str(tree)[:60])!r} is not {{"prompt": text}}; correct the line'
        )
    others = [name for name in tree if name != "prompt"]
    if others:
        raise DataError(
            f"--file {path}, line {number}: a line holds a prompt, and {others[0][:60]!r} would be passed over; leave "
            "it out, and say how texts are drawn with --set generation.sampling, or in a .yaml file"
        )
    return str(tree["prompt"])
