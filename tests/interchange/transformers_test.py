"""Conversion in both directions with transformers: its models start trainings here, and ours run there."""

import json
import shlex
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from plans import small
from tokens.curated import curated, documents
from trivium.certify.certificate import RULE
from trivium.certify.layouts import ROTARY
from trivium.checkpoint.format import published
from trivium.checkpoint.load import Checkpoint
from trivium.cli import main as entry
from trivium.cli.run_config import Given, resolve
from trivium.comms.mesh import Mesh
from trivium.config import build, to_tree
from trivium.evaluation.answer import NativeScorer
from trivium.evaluation.windows import Encoded
from trivium.interchange.bring import import_hf
from trivium.interchange.export import TOLERANCE, export_hf, logits
from trivium.interchange.names import twins
from trivium.model.generate import Choice, Draft, continue_drafts
from trivium.model.whole import WholeModel
from trivium.plan.parameters import Box, parameters
from trivium.plan.plan import Plan
from trivium.tokens.config import TokensConfig
from trivium.tokens.encode import tokenize
from trivium.tokens.samples import TokenDataset
from trivium.tokens.tokenizer import Tokenizer, load_tokenizer
from trivium.training.config import TrainingConfig
from trivium.training.loop import TrainingJob
from trivium.training.metrics import METRICS, read
from trivium.training.record import CHECKPOINTS
from trivium.training.state import begin_with
from trivium.training.supervision.job import start
from trivium.training.trainer import Samples, Trainer

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

VOCABULARY = 300
GPT2 = {"n_embd": 24, "n_layer": 4, "n_head": 4, "n_positions": 16, "vocab_size": VOCABULARY}
LLAMA = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 16,
    "vocab_size": VOCABULARY,
}
NEOX = {**LLAMA, "hidden_dropout": 0.0, "attention_dropout": 0.0}
GEMMA = {**LLAMA, "num_key_value_heads": 2, "head_dim": 12, "query_pre_attn_scalar": 7, "pad_token_id": 0}
GRANITE = {
    **LLAMA,
    "num_key_value_heads": 2,
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.2,
    "residual_multiplier": 0.3,
    "logits_scaling": 4.0,
}
PHI3 = {**LLAMA, "num_key_value_heads": 2, "pad_token_id": 0}
# Sequences exceed the original positions; some pairs of columns are slowed fully, some partly.
LLAMA31 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 0.05, "high_freq_factor": 1.0}
LLAMA31["original_max_position_embeddings"] = 4
QWEN3 = {**LLAMA, "num_key_value_heads": 2, "head_dim": 8, "use_sliding_window": True}
ALL, SLIDES = "full_attention", "sliding_attention"
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4, "beta_slow": 0.001}
SCALINGS = {"linear": {"rope_type": "linear", "factor": 2.5}, "llama 3.1": LLAMA31, "yarn": YARN}
THEIRS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2", {**GPT2, "resid_pdrop": 0.0}),
    "gpt2 untied": ("GPT2", {**GPT2, "resid_pdrop": 0.0, "tie_word_embeddings": False, "n_inner": 40}),
    "llama": ("Llama", {**LLAMA, "num_key_value_heads": 4, "rope_theta": 500.0}),
    "llama grouped tied": ("Llama", {**LLAMA, "num_key_value_heads": 2, "tie_word_embeddings": True}),
    "llama one group": ("Llama", {**LLAMA, "num_key_value_heads": 1}),
    "llama of wide heads": ("Llama", {**LLAMA, "num_key_value_heads": 2, "head_dim": 12}),
    "mistral": ("Mistral", {**LLAMA, "num_key_value_heads": 2, "sliding_window": 16, "head_dim": 12}),
    "mistral without a window": ("Mistral", {**LLAMA, "num_key_value_heads": 2, "sliding_window": None}),
    "qwen2": ("Qwen2", {**LLAMA, "num_key_value_heads": 2, "sliding_window": 4}),
    "mistral through a window": ("Mistral", {**LLAMA, "num_key_value_heads": 2, "sliding_window": 5}),
    "ministral": (
        "Ministral",
        {
            **LLAMA,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "sliding_window": 5,
            "layer_types": [ALL, SLIDES, SLIDES, ALL],
        },
    ),
    "qwen2 through a window": (
        "Qwen2",
        {**LLAMA, "num_key_value_heads": 4, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    ),
    "qwen3 through a window": ("Qwen3", {**QWEN3, "sliding_window": 4, "layer_types": [SLIDES, ALL] * 2}),
    "neox": ("GPTNeoX", {**NEOX, "rotary_pct": 0.25, "hidden_act": "gelu"}),
    "neox one after the other": ("GPTNeoX", {**NEOX, "rotary_pct": 0.5, "use_parallel_residual": False}),
    "neox of all columns, tied": (
        "GPTNeoX",
        {**NEOX, "rotary_pct": 1.0, "hidden_act": "gelu_new", "tie_word_embeddings": True},
    ),
    "qwen2 tied": ("Qwen2", {**LLAMA, "num_key_value_heads": 4, "tie_word_embeddings": True}),
    "olmo2": ("Olmo2", {**LLAMA, "rope_theta": 500.0}),
    "olmo2 grouped tied": ("Olmo2", {**LLAMA, "num_key_value_heads": 2, "tie_word_embeddings": True}),
    "olmo3 through a window": ("Olmo3", {**LLAMA, "sliding_window": 4}),  # all layers except every fourth
    "olmo3 grouped through a window": (
        "Olmo3",
        {
            **LLAMA,
            "num_key_value_heads": 2,
            "tie_word_embeddings": True,
            "sliding_window": 5,
            "layer_types": [ALL, SLIDES, ALL, SLIDES],
            "rope_parameters": {kind: {"rope_type": "default", "rope_theta": 500.0} for kind in (ALL, SLIDES)},
        },
    ),
    "olmo3 that sees all, yarn": (
        "Olmo3",
        {**LLAMA, "layer_types": [ALL] * 4, "rope_theta": 500.0, "rope_scaling": YARN},
    ),
    "qwen3": ("Qwen3", {**LLAMA, "num_key_value_heads": 2, "head_dim": 12}),
    "llama 3.1": ("Llama", {**LLAMA, "rope_theta": 500.0, "rope_scaling": LLAMA31}),
    "llama, linear": ("Llama", {**LLAMA, "rope_parameters": SCALINGS["linear"]}),
    "llama, yarn": ("Llama", {**LLAMA, "rope_parameters": YARN | {"attention_factor": 1.3, "beta_fast": 0.05}}),
    "qwen2, yarn": ("Qwen2", {**LLAMA, "num_key_value_heads": 2, "rope_scaling": YARN}),
    "qwen3 tied": ("Qwen3", {**LLAMA, "num_key_value_heads": 1, "head_dim": 8, "tie_word_embeddings": True}),
    "gemma2 through a window": (
        "Gemma2",
        {**GEMMA, "sliding_window": 5, "attn_logit_softcapping": 0.5, "final_logit_softcapping": 1.0},
    ),
    "gemma2 without caps": ("Gemma2", {**GEMMA, "attn_logit_softcapping": None, "final_logit_softcapping": None}),
    "gemma2 through a window at the end": (
        "Gemma2",
        {**GEMMA, "sliding_window": 3, "layer_types": [ALL, ALL, ALL, SLIDES], "tie_word_embeddings": False},
    ),
    "gemma3 through a window": ("Gemma3", {**GEMMA, "sliding_window": 5, "layer_types": [SLIDES, SLIDES, ALL, SLIDES]}),
    "gemma3 that sees all": ("Gemma3", {**GEMMA, "layer_types": [ALL] * 4, "final_logit_softcapping": 1.0}),
    **{
        f"neox, {kind}": ("GPTNeoX", {**NEOX, "rotary_pct": 0.5, "rope_parameters": {**scaling, "rope_theta": 500.0}})
        for kind, scaling in SCALINGS.items()
    },
    **{
        f"gemma2, {kind}": ("Gemma2", {**GEMMA, "rope_parameters": {**scaling, "rope_theta": 500.0}})
        for kind, scaling in SCALINGS.items()
    },
    **{
        f"gemma3 through a window, {kind}": (
            "Gemma3",
            {
                **GEMMA,
                "sliding_window": 4,
                "layer_types": [ALL, SLIDES, ALL, SLIDES],
                "rope_parameters": {ALL: {**scaling, "rope_theta": 300.0}, SLIDES: {**near, "rope_theta": 20.0}},
            },
        )
        for (kind, scaling), near in zip(
            SCALINGS.items(), ({"rope_type": "default"}, YARN | {"attention_factor": 1.3}, LLAMA31), strict=True
        )
    },
    "granite": ("Granite", {**GRANITE, "tie_word_embeddings": False}),
    "granite tied": ("Granite", {**GRANITE, "tie_word_embeddings": True}),
    "phi3": ("Phi3", PHI3),
    "phi3 through a window": ("Phi3", {**PHI3, "sliding_window": 5}),
}
BACK = [name for name in THEIRS if "phi3" not in name]  # those are written as Llama or Mistral, with separate matrices


def theirs(name: str, folder: Path) -> Any:
    """Create a model of transformers with random weights, biases and norms, saved in `folder`."""
    family, settings = THEIRS[name]
    kind = "Gemma3TextConfig" if family == "Gemma3" else f"{family}Config"
    config = getattr(transformers, kind)(**settings, bos_token_id=0, eos_token_id=0)
    if "Gemma" in family:
        config._attn_implementation = "eager"  # the only one that caps scores
    architecture = "GPT2LMHeadModel" if family == "GPT2" else f"{family}ForCausalLM"
    model = getattr(transformers, architecture)(config).eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=generator) / 12)
    model.save_pretrained(folder)
    return model


def ours(checkpoint: Checkpoint) -> WholeModel:
    model = build(Plan, checkpoint.manifest["plan"]).model
    whole = WholeModel(model, precision="fp32", device=torch.device("cpu"))
    for p in parameters(model):
        whole.load(p.name, checkpoint.read(f"weights/{p.name}", Box((0,) * len(p.shape), p.shape), torch.float32))
    return whole


@pytest.mark.parametrize("name", THEIRS)
def test_logits_equal_those_of_transformers(tmp_path: Path, name: str) -> None:
    model = theirs(name, tmp_path / "theirs")
    here = ours(Checkpoint.open(import_hf(tmp_path / "theirs", tmp_path / "ours")))
    rows = torch.randint(0, VOCABULARY, (3, 16), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = model(rows).logits
    assert (expected - here.logits(rows.tolist())).abs().max() <= TOLERANCE
    if name not in BACK:
        assert (expected - logits(tmp_path / "theirs", rows)).abs().max() <= TOLERANCE


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gemma3 through a window", {"sliding_window_pattern": 2}),  # as versions before 4.53 wrote it
        ("mistral through a window", {"layer_types": [SLIDES, ALL, SLIDES, ALL]}),
    ],
)
def test_windows_said_by_other_fields_are_those_of_transformers(tmp_path: Path, name: str, said: dict) -> None:
    theirs(name, tmp_path / "theirs")
    path = tmp_path / "theirs" / "config.json"
    config = json.loads(path.read_text())
    config.pop("layer_types", None)
    path.write_text(json.dumps(config | said))
    model = transformers.AutoModelForCausalLM.from_pretrained(path.parent, attn_implementation="eager").eval()
    here = ours(Checkpoint.open(import_hf(path.parent, tmp_path / "ours")))
    rows = torch.randint(0, VOCABULARY, (3, 16), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert (model(rows).logits - here.logits(rows.tolist())).abs().max() <= TOLERANCE


@pytest.mark.parametrize("name", BACK)
def test_folder_of_transformers_comes_back_unchanged(tmp_path: Path, name: str) -> None:
    model = theirs(name, tmp_path / "theirs")
    export_hf(Checkpoint.open(import_hf(tmp_path / "theirs", tmp_path / "ours")), tmp_path / "back", tokenizer=None)
    before, after = (load_file(tmp_path / folder / "model.safetensors") for folder in ("theirs", "back"))
    assert before.keys() == after.keys() and all(torch.equal(before[key], after[key]) for key in before)
    how = {"attn_implementation": model.config._attn_implementation}
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "back", **how).eval()
    rows = torch.randint(0, VOCABULARY, (3, 16), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = model(rows).logits
        torch.testing.assert_close(again(rows).logits, expected)
    assert (expected - logits(tmp_path / "back", rows)).abs().max() <= TOLERANCE, "the plain reading of the folder"
    for field in ("sliding_window", "layer_types"):
        if SLIDES in (getattr(model.config, "layer_types", None) or [SLIDES]):
            assert getattr(again.config, field, None) == getattr(model.config, field, None)


@pytest.mark.parametrize("name", BACK)
def test_gradients_equal_those_of_transformers(tmp_path: Path, name: str) -> None:
    model = theirs(name, tmp_path / "theirs").double()
    checkpoint = Checkpoint.open(import_hf(tmp_path / "theirs", tmp_path / "ours"))
    shape = build(Plan, checkpoint.manifest["plan"]).model
    # Keep every bucket unsharded, so that the gradient in it is the batch's mean gradient.
    plan = small(model=to_tree(shape), batch={"sequences": 2, "micro": 2}, zero=0, precision={"weights": "fp64"})
    trainer = Trainer(plan, Mesh.single(), seed=1, rule=RULE)
    begin_with(trainer, checkpoint)
    # Without the ids of padding (0 or 1), whose embedding has no gradient in transformers.
    rows = torch.randint(2, VOCABULARY, (2, 17), generator=torch.Generator().manual_seed(1))
    trainer.accumulate(0, Samples.of_ids(rows.numpy().reshape(-1), plan, 0))
    read = rows.reshape(-1)[:32].view(2, 16), rows.reshape(-1)[1:33].view(2, 16)
    torch.nn.functional.cross_entropy(model(read[0]).logits.flatten(0, 1), read[1].flatten()).backward()
    there = {name: p.grad for name, p in model.named_parameters()}
    there["embed_out.weight"] = there.get("lm_head.weight")  # GPT-NeoX's, whose files name it so
    least = 1e-4 * max(float(g.abs().max()) for g in there.values() if g is not None)
    for twin in twins(shape):
        expected = twin.from_hf(tuple(there[name] for name in twin.theirs))
        bucket, slot = next((b, slot) for b in trainer.buckets for slot in b.slots if slot.row.name == twin.ours.name)
        found = bucket.gradients[slot.start : slot.stop].view(slot.parameter.shape)[: expected.shape[0]]
        away = (found - expected).abs().max() / max(float(expected.abs().max()), least)
        assert away <= 1e-5, twin.ours.name  # transformers compute norms, scores and angles in fp32


@pytest.mark.broad
@pytest.mark.parametrize("name", [name for name in THEIRS if "window" in name or name == "ministral"])
def test_generation_beyond_window_equals_transformers(tmp_path: Path, name: str) -> None:
    model = theirs(name, tmp_path / "theirs")
    here = ours(Checkpoint.open(import_hf(tmp_path / "theirs", tmp_path / "ours")))
    prompts = [[5, 7, 11], [2, 3, 5, 7, 11, 13, 17, 19], [2, 3, 5, 7, 9], [2, 3, 5, 7, 9, 1, 4, 4]]
    drafts = [Draft(p, Choice(0, 0, 1, 0), lambda drawn: False, 16 - len(p)) for p in prompts]
    continue_drafts(here, drafts)
    for prompt, draft in zip(prompts, drafts, strict=True):
        wanted = {"min_new_tokens": 16 - len(prompt), "max_new_tokens": 16 - len(prompt)}
        # End-of-text would stop generation and padding would be hidden; here both are ordinary ids.
        model.generation_config.eos_token_id = None
        row = torch.tensor([prompt])
        written = model.generate(row, attention_mask=torch.ones_like(row), do_sample=False, **wanted)
        assert written[0].tolist() == draft.text
    texts = [draft.text for draft in drafts]
    asked = [Encoded(text[:n], text[n : n + 3]) for text in texts for n in (1, 6, 9, 12)]
    asked += [Encoded(e.context, [*e.continuation[:1], 8]) for e in asked]
    found = NativeScorer(here, cast(Tokenizer, None)).loglikelihood_of_ids(asked)
    for (likelihood, _), (context, continuation) in zip(found, asked, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([[*context, *continuation]])).logits[0]
        nats = logits.log_softmax(-1)[len(context) - 1 : -1]
        expected = sum(float(nats[n, token]) for n, token in enumerate(continuation))
        assert likelihood == pytest.approx(expected, abs=1e-4)


@pytest.fixture(scope="module")
def tokens(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("exchange")
    source = curated(root / "curated", documents({"prose": 30}, words=60), {"prose": 1.0})
    (root / "tokens").mkdir()
    config = TokensConfig(vocabulary=VOCABULARY, validation_fraction=0.2)
    tokenize(config, source, root / "tokens", seed=3)
    return root / "tokens"


def train(tokens: Path, out: Path, plan: Plan, start_from: Path | None, steps: int = 2) -> Checkpoint:
    training = TrainingConfig(
        steps=steps,
        validation_samples=8,
        checkpoint_every=2,
        start_from=None if start_from is None else str(start_from),
    )
    start(TrainingJob(plan, training, 5, tokens, out))
    return Checkpoint.open(published(out / CHECKPOINTS)[-1])


LAYOUTS = {
    "gpt2": {"tensor": 2, "pipeline": 2},
    "llama grouped tied": {"data": 2, "zero": 3},
    "llama": {"pipeline": 2, "chunks": 2},
    "mistral": {"tensor": 2, "sequence_parallel": True},
    "qwen2": {"tensor": 2, "zero": 2},
    "qwen3": {"tensor": 2, "data": 2},
    "mistral through a window": {"context": 2, "tensor": 2},
    "qwen2 through a window": {"pipeline": 2, "data": 2},
    "olmo2 grouped tied": {"tensor": 2, "sequence_parallel": True},
    "olmo3 grouped through a window": {"tensor": 2, "pipeline": 2},
}


@pytest.mark.broad
@pytest.mark.parametrize("name", LAYOUTS)
def test_training_continues_from_transformers_in_any_layout(tokens: Path, tmp_path: Path, name: str) -> None:
    model = theirs(name, tmp_path / "theirs")
    path = import_hf(tmp_path / "theirs", tmp_path / "ours")
    shape = build(Plan, Checkpoint.open(path).manifest["plan"]).model
    given = {k: v for k, v in to_tree(shape).items() if v is not None} | {"vocabulary_multiple": 2}
    plan = small(model=given, batch={"sequences": 8, "micro": 2}, **LAYOUTS[name])
    train(tokens, tmp_path / "out", plan, path)
    rows = torch.from_numpy(TokenDataset.open(tokens, "train", sequence=16, seed=5).samples(range(8)).astype(np.int64))
    with torch.no_grad():
        logits = model(rows[:, :-1]).logits
    expected = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), rows[:, 1:].reshape(-1))
    first = next(m["loss"] for m in read(tmp_path / "out" / METRICS) if "loss" in m)
    assert first == pytest.approx(float(expected), rel=1e-5)


TEXTS = (
    "The parser reads each token .",
    " two  spaces , a tab\tand a\nnewline\r\n",
    "naïve café — 漢字 🙂 ﬁ",
    "it 's n't we 're",
    "",
)


def test_trained_model_runs_in_transformers_with_tokenizer(tokens: Path, tmp_path: Path) -> None:
    model = {"vocabulary": VOCABULARY, "vocabulary_multiple": 64, "sequence": 24, **ROTARY}
    words = load_tokenizer(tokens / "tokenizer.json")
    plan = small(model={**model, "end_of_text": words.end_of_text}, batch={"sequences": 8, "micro": 2}, tensor=2)
    checkpoint = train(tokens, tmp_path / "out", plan, None)
    export_hf(checkpoint, tmp_path / "hf", tokenizer=tokens / "tokenizer.json")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    for text in TEXTS:
        ids = theirs(text, add_special_tokens=False)["input_ids"]
        assert ids == words.encode(text)
        assert theirs.decode(ids) == words.decode(ids) == text
    end = words.end_of_text
    assert (theirs.eos_token_id, theirs.bos_token_id, theirs.model_max_length) == (end, end, 24)
    generation = transformers.GenerationConfig.from_pretrained(tmp_path / "hf")
    assert (generation.eos_token_id, generation.pad_token_id, generation.max_length) == (end, end, 24)
    there = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf").eval()
    assert there.config.vocab_size == VOCABULARY and there.get_input_embeddings().weight.shape[0] == VOCABULARY
    prompt = words.encode(TEXTS[0])
    found = there.generate(torch.tensor([prompt]), do_sample=False)[0].tolist()
    here, said = ours(checkpoint), list(prompt)
    while len(said) < 24 and (len(said) == len(prompt) or said[-1] != end):
        said.append(int(here.logits([said])[0, -1].argmax()))
    assert found == said


def test_commands_convert_both_ways_with_equal_tokens(tokens: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    plan = small(model={"vocabulary": VOCABULARY}, batch={"sequences": 8, "micro": 2})
    out = tmp_path / "run"
    train(tokens, out / "training", plan, None)
    (out / "tokens").symlink_to(tokens)

    def say(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["trivium", "checkpoint", *words])
        with pytest.raises(SystemExit, match="0"):
            entry.main()
        return capsys.readouterr().out

    assert "logits differ by at most" in say("export", str(tmp_path / "hf"), "--out", str(out))
    told = say("import", str(tmp_path / "hf"), "--to", str(tmp_path / "back"), "--out", str(tmp_path / "my run"))
    words = [shlex.split(line) for line in told.splitlines() if "trivium corpus run" in line]
    assert [w[:3] + w[4:] for w in words] == [["trivium", "corpus", "run", "--out", str(tmp_path / "my run")]]
    config = resolve(Given(words[0][3])).checked()  # the printed command can be typed as it is
    assert config.tokens.vocabulary == config.plan.model.vocabulary == VOCABULARY
    assert config.training.start_from == str(tmp_path / "back" / "step-00000000")
    again = tmp_path / "again"
    again.mkdir()
    config = TokensConfig(tokenizer=str(tmp_path / "hf"), vocabulary=VOCABULARY, validation_fraction=0.2)
    tokenize(config, tokens.parent / "curated", again, seed=3)
    assert (again / "train-prose.bin").read_bytes() == (tokens / "train-prose.bin").read_bytes()
    # The imported checkpoint knows its tokenizer, so tokens made with it are accepted.
    train(again, tmp_path / "on", plan, tmp_path / "back" / "step-00000000")
