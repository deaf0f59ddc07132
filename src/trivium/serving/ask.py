"""Parse and validate requests to `/v1/completions` and `/v1/chat/completions`."""

import json
import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from trivium.errors import DataError
from trivium.serving.chat import Chat
from trivium.serving.config import Drawing, Penalty, RepetitionPenalty, ServeConfig
from trivium.tokens.chat.conversation import SYSTEM, Turn
from trivium.tokens.tokenizer import Tokenizer

# A list in a 1 MB body may have many errors, so validation stops at the first.
Ids = Annotated[list[Annotated[int, Field(ge=0)]], Field(fail_fast=True)]
Stop = Annotated[list[Annotated[str, Field(min_length=1)]], Field(fail_fast=True)]
MAX_STOPS = 16  # texts in stop
Biases = dict[Annotated[str, Field(pattern=r"^[0-9]{1,9}$")], Annotated[float, Field(ge=-100, le=100)]]
MAX_BIASES = 1024  # tokens in logit_bias

# Fields that clients send but this server does not implement, with the values (besides null) that have no effect or
# request the default behaviour. Any other value would be ignored silently, so it is an error.
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    # of OpenAI's completions
    "suffix": ("",),
    # of OpenAI's accounts
    "store": (False,),
    "metadata": ({},),
    "service_tier": ("auto", "default"),
    # of OpenAI's chats, which some clients send with every request
    "audio": (),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "max_completion_tokens": (),
    "modalities": (["text"],),
    "parallel_tool_calls": (False, True),
    "prediction": (),
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "verbosity": ("medium",),
    "web_search_options": (),
    # of other servers that speak this protocol
    "add_special_tokens": (True,),
    "early_stopping": (False,),
    "ignore_eos": (False,),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "min_p": (0,),
    "min_tokens": (0,),
    "stop_token_ids": ([],),
    "typical_p": (1,),
    "use_beam_search": (False,),
}
# texts for the client's own use
CLIENT_FIELDS = ("user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention")


class Refused(Exception):
    """A request is rejected: HTTP status, message, the invalid field, and OpenAI's code for the reason."""

    def __init__(self, status: int, message: str, field: str | None = None, code: str | None = None) -> None:
        self.status, self.message, self.field, self.code = status, message, field, code
        super().__init__(message)


class StreamOptions(BaseModel):
    """Options of streaming."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    include_usage: bool | None = False
    include_obfuscation: Literal[False] | None = False  # random padding, which is not sent
    continuous_usage_stats: Literal[False] | None = False


class Asked(BaseModel):
    """The fields that both kinds of requests have: those of OpenAI, with `top_k` and `repetition_penalty` in
    addition."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    model: str | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0, le=1 << 31)] = 0
    repetition_penalty: RepetitionPenalty = 1.0
    frequency_penalty: Penalty = 0.0
    presence_penalty: Penalty = 0.0
    logit_bias: Biases = {}
    n: Annotated[int, Field(ge=1)] = 1
    stop: str | Stop | None = None
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None

    @field_validator("stop")
    @classmethod
    def _in_whole_characters(cls, stop: str | list[str] | None) -> str | list[str] | None:
        "".join(stop or ()).encode()  # raises UnicodeEncodeError, a ValueError, for a lone surrogate
        return stop

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop texts."""
        if self.stop is None or self.stop == "":
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    @abstractmethod
    def alternatives(self) -> int | None:
        """The number of alternatives per token; None if no log-probabilities are requested."""

    @property
    def echoes(self) -> bool:
        """Whether the response begins with the prompt."""
        return False

    def text_of(self, number: int) -> str | None:
        """Return prompt `number` if it was given as text, otherwise None."""
        return None

    @property
    def tells_usage(self) -> bool:
        """Whether the stream ends with the token usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def drawing(self, max_tokens: int, stops: Sequence[str] = ()) -> Drawing:
        """Return the sampling settings; the caller sets the seed. stops: further stop texts."""
        return Drawing(
            max_tokens=max(1, max_tokens),
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            repetition_penalty=self.repetition_penalty,
            frequency_penalty=self.frequency_penalty,
            presence_penalty=self.presence_penalty,
            stop=(*self.stops, *stops),
        )

    def biases(self) -> dict[int, float]:
        """Return what is added to the scores of token ids."""
        return {int(token): bias for token, bias in self.logit_bias.items() if bias}


class Completion(Asked):
    """A request in the format of OpenAI's completions."""

    prompt: str | Ids | Annotated[list[str], Field(fail_fast=True)] | Annotated[list[Ids], Field(fail_fast=True)]
    max_tokens: Annotated[int, Field(ge=0)] = 16
    logprobs: Annotated[int, Field(ge=0)] | None = None
    echo: bool = False

    @property
    def alternatives(self) -> int | None:
        """The number of alternatives per token; None if no log-probabilities are requested."""
        return self.logprobs

    @property
    def echoes(self) -> bool:
        """Whether the response begins with the prompt."""
        return self.echo

    def text_of(self, number: int) -> str | None:
        """Return prompt `number` if it was given as text, or None if it was given as ids."""
        prompt = self.prompt if isinstance(self.prompt, str) else self.prompt[number]
        return prompt if isinstance(prompt, str) else None


class Message(BaseModel):
    """A message: its role, and its content as text or as a list of texts."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    # fields of messages that this server returned or that clients send, with these values alone
    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **dict.fromkeys(("name", "refusal", "audio", "function_call", "reasoning_content"), (None,)),
        **dict.fromkeys(("tool_calls", "annotations"), (None, [])),
    }

    role: Literal["system", "developer", "user", "assistant"]
    content: str

    @model_validator(mode="before")
    @classmethod
    def _without_neutral_fields(cls, tree: Any) -> Any:
        if not isinstance(tree, dict):
            return tree
        return {name: value for name, value in tree.items() if value not in cls.neutral.get(name, ())}

    @field_validator("content", mode="before")
    @classmethod
    def _joined(cls, content: Any) -> Any:
        """Join the parts of a content, each on lines of its own."""
        if isinstance(content, str):
            content.encode()  # raises UnicodeEncodeError, a ValueError, for a lone surrogate
        if not isinstance(content, list):
            return content
        for number, part in enumerate(content):
            if not (isinstance(part, dict) and part.keys() == {"type", "text"} and part["type"] == "text"):
                raise ValueError(f'part {number} is not of the form {{"type": "text", "text": "..."}}')
            if not isinstance(part["text"], str):
                raise ValueError(f"the text of part {number} is not a string")
            part["text"].encode()
        return "\n".join(part["text"] for part in content)

    @property
    def turn(self) -> Turn:
        return Turn(SYSTEM if self.role == "developer" else self.role, self.content)


class ChatCompletion(Asked):
    """A request in the format of OpenAI's chat completions."""

    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None  # the older name of max_completion_tokens
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0)] | None = None

    @property
    def alternatives(self) -> int | None:
        """The number of alternatives per token; None if no log-probabilities are requested."""
        return (self.top_logprobs or 0) if self.logprobs else None


class Task(NamedTuple):
    """The work of a request. ends: ids that end a text. max_tokens: most new tokens of each text."""

    prompts: list[list[int]]
    settings: Drawing
    max_tokens: int
    ends: frozenset[int] = frozenset()


AskedT = TypeVar("AskedT", bound=Asked)


def parse(body: bytes, limits: ServeConfig, kind: type[AskedT]) -> AskedT:
    """Parse a request's body; null stands for a field's default. Raises Refused with 400 for the first invalid
    field.

    A body of 1 MB may have a hundred thousand fields, prompts or errors, so none of these is processed in full
    before a limit is checked.
    """
    try:
        tree = json.loads(body, parse_constant=_refuse_constant, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"the body is not JSON: {str(error)[:200]}") from None
    if not isinstance(tree, dict):
        raise Refused(400, f"the body is a JSON {type(tree).__name__}, not an object")
    _refuse_ineffective(tree, kind)
    prompts = tree.get("prompt")
    if isinstance(prompts, list) and prompts and not isinstance(prompts[0], int):
        _refuse_more("prompt", len(prompts), limits.texts)
    for field, most in (("messages", limits.messages), ("logit_bias", MAX_BIASES), ("stop", MAX_STOPS)):
        if isinstance(tree.get(field), (list, dict)):
            _refuse_more(field, len(tree[field]), most)
    given = {k: v for k, v in tree.items() if v is not None and k in kind.model_fields}
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        first = _nearest(error.errors())
        place, why = _field_of(first["loc"]), first["msg"].removeprefix("Value error, ").lower()
        raise Refused(400, f"{place}: {why}", place) from None
    except (RecursionError, UnicodeError) as error:
        raise Refused(400, f"the body cannot be read: {type(error).__name__}") from None


def _field_of(place: Sequence[int | str]) -> str | None:
    """Return a field's name, with its path in a message, such as messages[3].content."""
    if not place:
        return None
    inside = place[1:] if place[0] == "messages" else ()
    return "".join([str(place[0])[:60], *(f"[{k}]" if isinstance(k, int) else f".{k[:60]}" for k in inside)])


def task_of(asked: Asked, chat: Chat, limits: ServeConfig, sequence: int) -> Task:
    """Return what the model has to do. Raises Refused for limits of the server or the model that are exceeded."""
    tokenizer = chat.tokenizer
    foreign = max(asked.biases(), default=0)
    if foreign >= tokenizer.vocabulary:
        raise Refused(
            400, f"logit_bias: {foreign} is not a token id; the vocabulary has {tokenizer.vocabulary}", "logit_bias"
        )
    if isinstance(asked, ChatCompletion):
        return _task_of_chat(asked, chat, limits, sequence)
    assert isinstance(asked, Completion), f"a {type(asked).__name__} has prompts"
    prompts = prompts_of(asked, tokenizer, limits, sequence)
    return Task(prompts, asked.drawing(asked.max_tokens), asked.max_tokens)


def _task_of_chat(asked: ChatCompletion, chat: Chat, limits: ServeConfig, sequence: int) -> Task:
    """Return the task of a conversation. By default, its answer may have as many tokens as are allowed."""
    if asked.max_tokens is not None and asked.max_completion_tokens is not None:
        raise Refused(400, "max_tokens: max_completion_tokens is given too; leave one of them out", "max_tokens")
    if asked.top_logprobs and not asked.logprobs:
        raise Refused(
            400, f"top_logprobs: {_cut(asked.top_logprobs)} without logprobs; give logprobs: true", "top_logprobs"
        )
    field = "max_tokens" if asked.max_tokens is not None else "max_completion_tokens"
    wanted = asked.max_tokens or asked.max_completion_tokens
    for name, found, most in (
        (field, wanted or 0, limits.max_tokens),
        ("top_logprobs", asked.top_logprobs or 0, limits.logprobs),
        ("n", asked.n, limits.texts),
    ):
        _refuse_more(name, found, most)
    try:
        ids, stops, ends = chat.prompt([message.turn for message in asked.messages]), chat.stops, chat.ends
    except DataError as error:
        raise Refused(400, f"messages: {error}", "messages") from None
    room = sequence + 1 - len(ids)
    if (wanted or 1) > room:
        raise Refused(
            400,
            f"messages: {len(ids)} tokens and {field} {wanted or 1} are more than the model's {sequence + 1}",
            "messages",
            "context_length_exceeded",
        )
    max_tokens = wanted or min(room, limits.max_tokens)
    return Task([ids], asked.drawing(max_tokens, stops), max_tokens, ends)


def prompts_of(asked: Completion, tokenizer: Tokenizer, limits: ServeConfig, sequence: int) -> list[list[int]]:
    """Return the prompts as ids. Raises Refused for limits of the server or the model that are exceeded."""
    prompts = _encoded(asked.prompt, tokenizer)
    if not prompts:
        raise Refused(400, "prompt: the list is empty; give a text, token ids, or a list of either", "prompt")
    for field, found, most in (
        ("max_tokens", asked.max_tokens, limits.max_tokens),
        ("logprobs", asked.logprobs or 0, limits.logprobs),
        ("n", asked.n, limits.texts),
        ("prompt", len(prompts) * asked.n, limits.texts),
    ):
        _refuse_more(field, found, most)
    for ids in prompts:
        if max(ids) >= tokenizer.vocabulary:
            raise Refused(
                400, f"prompt: {_cut(max(ids))} is not a token id; the vocabulary has {tokenizer.vocabulary}", "prompt"
            )
        room = sequence + (0 if asked.max_tokens == 0 else 1)
        if len(ids) + asked.max_tokens > room:
            raise Refused(
                400,
                f"prompt: {len(ids)} tokens and max_tokens {asked.max_tokens} are more than the model's {room}",
                "prompt",
                "context_length_exceeded",
            )
    return prompts


def _refuse_ineffective(tree: Mapping[str, Any], kind: type[Asked]) -> None:
    """Raise Refused for the first field that is unknown or requests something that is not implemented."""
    for name, value in tree.items():
        if name in kind.model_fields:
            continue
        if name not in (*NEUTRAL, *CLIENT_FIELDS, "best_of"):
            raise Refused(400, f"{name[:60]}: extra inputs are not permitted", name[:60])
        if value is None or _is_neutral(name, value, tree):
            continue
        if name in CLIENT_FIELDS:
            raise Refused(400, f"{name}: input should be a valid string", name)
        shown = "this value" if isinstance(value, (list, dict)) else json.dumps(value)[:60]
        values = [json.dumps(one) for one in NEUTRAL.get(name, ())]
        usual = "1 or n" if name == "best_of" else " or ".join([*values, "null"])
        raise Refused(400, f"{name}: this server does not apply {shown}; leave the field out, or give {usual}", name)


def _is_neutral(name: str, value: Any, tree: Mapping[str, Any]) -> bool:
    """Whether a value of a field that is not implemented has no effect."""
    if name in CLIENT_FIELDS:
        return isinstance(value, str)
    if name == "best_of":  # The best n of n texts are all of them.
        return _is_same(value, 1) or (_is_same(value, tree.get("n")) and isinstance(value, int))
    return any(_is_same(value, one) for one in NEUTRAL[name])


def _is_same(value: Any, other: Any) -> bool:
    """Whether two JSON values are equal; a boolean never equals a number."""
    return isinstance(value, bool) == isinstance(other, bool) and bool(value == other)


def _refuse_more(field: str, found: int, most: int) -> None:
    if found > most:
        raise Refused(400, f"{field}: {_cut(found)} is more than {most}, which this server allows", field)


def _cut(number: int) -> str:
    """Return at most 60 digits of a number, because one in a request may have thousands."""
    return str(number)[:60]


def _encoded(prompt: str | Sequence[Any], tokenizer: Tokenizer) -> list[list[int]]:
    try:
        if isinstance(prompt, str):
            return tokenizer.prompt_ids([prompt])
        if prompt and isinstance(prompt[0], int):
            return [list(prompt)]
        texts = [tokenizer.prompt_ids([p])[0] if isinstance(p, str) else list(p) for p in prompt]
    except DataError as error:
        raise Refused(400, f"prompt: {error}", "prompt") from None
    return [ids or [tokenizer.before_text] for ids in texts]


def _nearest(errors: Sequence[Any]) -> Any:
    """Return the error to report for the first invalid field: that of the union member that matches its value best."""
    by_kind: dict[Any, Any] = {}
    for error in errors:
        if error["loc"][:1] == errors[0]["loc"][:1]:
            by_kind.setdefault(error["loc"][:2], error)
    return max(by_kind.values(), key=lambda e: (len(e["loc"]), [n for n in e["loc"] if isinstance(n, int)]))


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is too large a number")
    return value
