"""Prompt files: text, JSON lines, or YAML with settings of their own; and those shipped with the package."""

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

FOLDER = "presets/prompts"  # in the package
YAML = (".yaml", ".yml")


# Where no documents are known that the model should be able to continue; any English text may go on from these.
NEUTRAL = ("The", "In the beginning,", "There is")
HELD_OUT_PROMPTS = 3
WORDS = 8  # of a document that begin a prompt; it has more than these
READ_TOKENS = 64  # of a document, in which so many words are looked for
# Two or more whole words of the first line; or the first characters of a text that has no spaces between words.
_BEGINNING = re.compile(rf"\s*(\S+(?:[^\S\n]+\S+){{1,{WORDS - 1}}}(?=\s)|\S{{16}})")


def default_prompts(tokenizer_file: Path) -> tuple[str, ...]:
    """The first words of documents that were held out of training, as the tokens beside a run's tokenizer have them;
    neutral prompts where no such tokens are there, or no document begins with two words.

    Documents are taken from each source in turn, so that every kind of text is seen.
    """
    folder = tokenizer_file.parent
    if not (folder / MANIFEST).is_file():
        return NEUTRAL
    tokenizer = load_tokenizer(tokenizer_file)
    try:
        shards = open_shards(folder, VALIDATION)
    except DataError:  # the model can be asked without its tokens
        return NEUTRAL
    texts = [_first_texts(shard, tokenizer) for shard in shards.values()]
    in_turn = chain.from_iterable(zip_longest(*texts))
    found = (_BEGINNING.match(text) for text in in_turn if text is not None)
    prompts = dict.fromkeys(match[1] for match in found if match is not None)
    return tuple(islice(prompts, HELD_OUT_PROMPTS)) or NEUTRAL


def _first_texts(shard: TokenShard, tokenizer: Tokenizer) -> list[str]:
    """How the first documents of a shard begin: more of them than prompts, as some have no words."""
    opening, texts = len(tokenizer.opening), []
    for number in range(min(len(shard), 8 * HELD_OUT_PROMPTS)):
        ids = shard[number][opening : opening + READ_TOKENS].tolist()
        texts.append(tokenizer.decode_text(ids))
    return texts


class PromptFile(Config):
    """Prompts, and how they are continued (what they do not say is as the config says)."""

    remedy: ClassVar[str] = "give it in the file"

    prompts: Annotated[tuple[str, ...], Field(min_length=1)]
    sampling: Drawing | None = None
    about: str = ""


def categories() -> list[str]:
    """The categories of the paper's examples, with prompts of our own."""
    return shipped_names(FOLDER)


def read_prompts(name_or_path: str) -> PromptFile:
    """The shipped prompts of this name, or a file: .yaml, .jsonl with {"prompt"} a line, or text, a prompt a line.

    Raises DataError for a file that is missing, damaged or empty, ConfigError for YAML with other fields.
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
            raise DataError(
                f"--file {path} cannot be read: {error.strerror}; give a file that exists"
            ) from None
        except UnicodeDecodeError:
            raise DataError(f"--file {path} is not UTF-8 text; give .txt, .jsonl or .yaml") from None
        if path.suffix in YAML:
            return _of_yaml(text, str(path))
        prompts = [line.decode("utf-8") for line in split_lines(content)]
    if not prompts:
        raise DataError(f"--file {path} contains no prompt; write one a line")
    return PromptFile(prompts=tuple(prompts))


def drawing_for(file: PromptFile, config: Drawing, given: Mapping[str, Any]) -> Drawing:
    """How its prompts are continued: by what was given at the call, then by the file, then by the config."""
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
