"""Run lm-evaluation-harness on a native checkpoint, as its model "trivium" (extra `eval`).

python -m trivium.evaluation.harness run --model trivium --model_args checkpoint=RUN --tasks …

RUN is a run, a checkpoint or a Hugging Face folder. Its tokenizer is found as `trivium generate` finds it, or named
with `tokenizer=FILE`. Importing this module registers the model.

`torchrun --nproc-per-node N -m trivium.evaluation.harness run …` answers with N ranks. They are data-parallel, or
parts of one model with `tensor=` and `pipeline=` in --model_args.
"""

import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

from lm_eval.__main__ import cli_evaluate
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs

from trivium.comms.launch import ALONE, connected, torchrun_place
from trivium.comms.mesh import Mesh
from trivium.errors import ConfigError, nearest
from trivium.evaluation.answer import NativeScorer, cut_at
from trivium.evaluation.config import MIN_REPETITION_PENALTY, NEUTRAL_VALUES
from trivium.evaluation.requests import Request
from trivium.evaluation.windows import Encoded, encode_all, window_of
from trivium.interchange.target import opened
from trivium.model.generate import Choice
from trivium.plan.layout import Layout
from trivium.seeds import seed_for

DEFAULT_MAX_TOKENS = 256  # generated if a task sets no limit: the harness's own default
# The harness adds these arguments itself. They are ignored: batches and devices are chosen elsewhere, and a checkpoint
# contains no code to trust.
IGNORED_ARGUMENTS = {"batch_size", "max_batch_size", "device", "trust_remote_code"}
# Generation settings (--gen_kwargs) that are supported.
HEEDED = ("until", "max_gen_toks", "do_sample", "temperature", "top_k", "top_p", "repetition_penalty")
# Lower bound, upper bound, and the rule of each setting that is a number.
LAWS: Mapping[str, tuple[float, float, str]] = {
    "temperature": (
        0,
        math.inf,
        "it divides the logits, so it must be a number from 0; 0 selects the most likely token",
    ),
    "top_k": (
        0,
        1 << 62,
        "it limits sampling to the k most likely tokens, so it must be a whole number from 0; 0 allows all",
    ),
    "top_p": (5e-324, 1, "it limits sampling to the nucleus, so it must be above 0 and at most 1; 1 allows all"),
    "repetition_penalty": (
        MIN_REPETITION_PENALTY,
        math.inf,
        f"it divides scores, so it must be a number from {MIN_REPETITION_PENALTY}; 1 changes nothing",
    ),
}
Pair = tuple[tuple[str, str], list[int], list[int]]


@register_model("trivium")
class HarnessModel(TemplateLM):
    """Implements the harness's model interface. Requests are scored as token ids, which the harness encodes."""

    def __init__(
        self,
        checkpoint: str = "",
        tokenizer: str = "",
        scorer: NativeScorer | None = None,
        seed: int = 0,
        tensor: int = 1,
        pipeline: int = 1,
        **more: Any,
    ) -> None:
        """checkpoint: a run, a checkpoint or a Hugging Face folder; or give an open `scorer`.
        tokenizer: path of tokenizer.json; empty searches near the checkpoint.
        tensor, pipeline: how many of torchrun's ranks hold a model together.
        more: arguments that the harness adds itself. Raises ConfigError for any other.
        """
        super().__init__()
        for name in sorted(more.keys() - IGNORED_ARGUMENTS):
            raise ConfigError(
                f"model_args {name}={more[name]!r}: there is no such argument of this model; "
                f"{nearest(name, ('checkpoint', 'tokenizer', 'seed', 'tensor', 'pipeline'))}"
            )
        if scorer is None and not checkpoint:
            raise ConfigError(
                f"model_args checkpoint={checkpoint!r}: the model is missing; write --model_args checkpoint=RUN with "
                "a run, a checkpoint or a Hugging Face folder"
            )
        if scorer is None:
            mesh = _mesh(int(tensor), int(pipeline))
            with opened(checkpoint, tokenizer or None) as target:
                scorer = NativeScorer.open(target.newest, target.tokenizer, mesh=mesh)
        self.scorer, self._seed = scorer, int(seed)

    @property
    def eot_token_id(self) -> int:
        return self.scorer.tokenizer.end_of_text

    @property
    def prefix_token_id(self) -> int:
        return self.scorer.tokenizer.before_text

    @property
    def max_length(self) -> int:
        return self.scorer.sequence

    @property
    def tokenizer_name(self) -> str:
        return self.scorer.tokenizer.sha256

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Encode a text. The tokenizer's start-of-document tokens are added unless `add_special_tokens` is False."""
        if add_special_tokens is False:
            return self.scorer.tokenizer.encode(string)
        return self.scorer.tokenizer.encode_prompts([string])[0]

    def _loglikelihood_tokens(
        self, requests: Sequence[Pair], disable_tqdm: bool = False, **kwargs: Any
    ) -> list[tuple[float, bool]]:
        # If a tokenizer merges a continuation into its context, the harness may leave no continuation id, and an empty
        # continuation would have probability 1. Use the ids of `trivium evaluate` then, which spell it.
        asked = [
            Encoded(context, continuation) if continuation else encode_all([Request(*text)], self.scorer.tokenizer)[0]
            for text, context, continuation in requests
        ]
        # Use one window per request, as the harness's Hugging Face model does.
        windows = [window_of(e, self.max_length) for e in asked]
        cut = [Encoded(w.ids[: len(w.ids) - w.answer], w.ids[len(w.ids) - w.answer :]) for w in windows]
        found = self.scorer.loglikelihood_of_ids(cut)
        for (text, _, _), answer in zip(requests, found, strict=True):
            self.cache_hook.add_partial("loglikelihood", text, answer)
        return found

    def loglikelihood_rolling(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[float]:
        texts = [request.args[0] for request in requests]
        found = self.scorer.loglikelihood_rolling(texts)
        for text, answer in zip(texts, found, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", (text,), answer)
        return found

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        words = self.scorer.tokenizer
        end = words.decode([words.end_of_text])
        drafts, stops = [], []
        for number, request in enumerate(requests):
            context, given = request.args
            stated = {k: v for k, v in given.items() if v is not None or k not in HEEDED}
            _number(stated, "temperature", 0.0)  # validate it before the harness converts it to a number
            settings = normalize_gen_kwargs(stated, DEFAULT_MAX_TOKENS)
            _refuse_unheeded(settings)
            stop = handle_stop_sequences(settings.get("until"), eos=end)
            wanted = int(settings["max_gen_toks"])
            room = self.max_length - wanted
            if room < 1:
                raise ConfigError(
                    f"max_gen_toks {wanted} leaves no room for a prompt in the model's {self.max_length} tokens; "
                    "lower it in --gen_kwargs"
                )
            choice = Choice(
                _temperature(settings),
                int(_number(settings, "top_k", 0)),
                _number(settings, "top_p", 1.0),
                seed_for(self._seed, "generate_until", number),
                _number(settings, "repetition_penalty", 1.0),
            )
            prompt = words.prompt_ids([context])[0][-room:]
            stops.append([s for s in stop if s])
            # The end of the document is a single token, so the texts need not be searched for it.
            texts = [s for s in stops[-1] if s != end]
            drafts.append(self.scorer.draft(prompt, choice, stop=texts, max_tokens=wanted))
        drawn = self.scorer.continue_drafts(drafts)
        texts = [cut_at(stop, words.decode_text(ids)) for stop, ids in zip(stops, drawn, strict=True)]
        for request, text in zip(requests, texts, strict=True):
            self.cache_hook.add_partial("generate_until", request.args, text)
        return texts


def _refuse_unheeded(settings: Mapping[str, Any]) -> None:
    """Raise ConfigError for settings that would be ignored although they would change the generated texts."""
    for name in sorted(settings.keys() - set(HEEDED)):
        value = settings[name]
        if name not in NEUTRAL_VALUES:
            raise ConfigError(
                f"gen_kwargs {name}={value!r}: this model has no such sampling setting; remove it, or "
                f"{nearest(name, HEEDED)}"
            )
        if value is not None and value not in NEUTRAL_VALUES[name]:
            raise ConfigError(
                f"gen_kwargs {name}={value!r} would change the texts, but is not supported; remove it, or "
                f"evaluate the exported folder with the harness's own model (trivium checkpoint export, --model hf)"
            )


def _temperature(settings: Mapping[str, Any]) -> float:
    """Return the temperature of a request, or 0 for greedy decoding."""
    value = _number(settings, "temperature", 0.0)
    if settings.get("do_sample") and not value:
        raise ConfigError(
            f"gen_kwargs temperature={settings.get('temperature')!r}: do_sample={settings['do_sample']!r} requires a "
            "temperature above 0; give one, or remove do_sample"
        )
    return value if settings.get("do_sample") else 0.0


def _number(settings: Mapping[str, Any], name: str, default: float) -> float:
    """Return a setting as a number, or `default` if it is missing. Raises ConfigError if it is out of bounds."""
    value = settings.get(name)
    if value is None:
        return default
    low, high, law = LAWS[name]
    fits = isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high and value < math.inf
    if not fits or (name == "top_k" and value != int(value)):
        raise ConfigError(f"gen_kwargs {name}={value!r}: {law}")
    return float(value)


def _mesh(tensor: int, pipeline: int) -> Mesh | None:
    """Connect the ranks that torchrun started, as replicas of `tensor` x `pipeline` ranks; None without torchrun."""
    place = torchrun_place() or ALONE
    layout = Layout(tensor=tensor, pipeline=pipeline, data=max(1, place.world_size // (tensor * pipeline)))
    if place.world_size == layout.world_size == 1:
        return None
    try:
        return Mesh.connect(layout, place.rank, place.world_size, place.device)
    except (ConfigError, ValueError) as error:  # torch raises ValueError if the ranks were never connected
        raise ConfigError(
            f"model_args tensor={tensor}, pipeline={pipeline} for {place.world_size} ranks: {error}; start as many "
            "as that needs with torchrun --nproc-per-node N -m trivium.evaluation.harness run …"
        ) from None


def main() -> None:
    """Run the harness's command line, after connecting the ranks if torchrun started several."""
    place = torchrun_place()
    with contextlib.nullcontext() if place is None else connected(place):
        cli_evaluate()


if __name__ == "__main__":
    main()
