"""Prompt files: text, JSON lines, or YAML with settings of their own; and those shipped with the package."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field

from trivium.config import Config, build, build_named, mapping_of_yaml, merge, shipped, shipped_names, to_tree
from trivium.errors import ConfigError, DataError, nearest
from trivium.jsonlines import read_rows, split_lines
from trivium.serving.config import Drawing
from trivium.units import plain
from trivium.untrusted import CONFIG_BYTES, DOCUMENT_BYTES, read_bytes

FOLDER = "presets/prompts"  # in the package
YAML = (".yaml", ".yml")


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
