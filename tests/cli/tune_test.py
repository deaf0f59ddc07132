"""`trivium tune`: what it decides for a model and its conversations, the run that it writes, and what it refuses."""

import json
import math
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evaluation.models import TEXTS, plan_of, write_checkpoint
from trivium.checkpoint.load import Checkpoint
from trivium.cli import tune
from trivium.cli.run_config import Given, resolve
from trivium.cli.stage import perform
from trivium.config import to_tree
from trivium.evaluation.answer import NativeScorer
from trivium.evaluation.requests import Request
from trivium.families.common.hf_config import read_settings
from trivium.interchange.bring import import_hf
from trivium.interchange.export import export_hf
from trivium.provenance import write_json
from trivium.tokens.chat.conversation import read_conversations
from trivium.tokens.chat.template import CHATML
from trivium.tokens.samples import TokenDataset
from trivium.tokens.tokenizer import load_tokenizer
from trivium.training.metrics import METRICS, records
from trivium.training.tuning import ADAPTER_LR, ADAPTER_PAIRS_LR, FULL_LR, methods

ROOT = Path(__file__).resolve().parents[2]
ADAPTER = next(name for name in methods() if name != "full")
SLOW_HOST = ["--set", "training.supervision.hang_seconds=200"]


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    """A run of a small Llama with one checkpoint, and the same model as a folder of Hugging Face."""
    root = tmp_path_factory.mktemp("models")
    training = root / "run" / "training"
    training.mkdir(parents=True)
    plan = plan_of("llama", sequence=96)
    newest = write_checkpoint(training, plan, step=4)
    (root / "run" / "tokens").mkdir()
    shutil.copy(training / "tokenizer.json", root / "run" / "tokens")
    config = to_tree(resolve(Given("demo", ("training.weight_decay=0.25", "training.evaluation.limit=7"))))
    config["plan"] |= {"model": to_tree(plan)["model"], "layout": to_tree(plan)["layout"], "schedule": "1f1b"}
    write_json(root / "run" / "config.json", config | {"tokens": config["tokens"] | {"vocabulary": 300}})
    export_hf(Checkpoint.open(newest), root / "hf", tokenizer=training / "tokenizer.json")
    return root


@pytest.fixture
def data(tmp_path: Path) -> str:
    turns = [(f"What follows {n}?", f"{n + 1}.") for n in range(40)]
    rows = [{"messages": [{"role": "user", "content": q}, {"role": "assistant", "content": a}]} for q, a in turns]
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return "questions.jsonl"


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The configs of the stages that follow the conversations, by name; none of them works."""
    found: dict[str, Any] = {}

    def noted(stage: Any, run: Any, **more: Any) -> None:
        if stage.name == "conversations":
            perform(stage, run, **more)
        else:
            found[stage.name] = run.config

    monkeypatch.setattr(tune, "perform", noted)
    return found


def tuned(call: Callable, model: Path, data: str, *more: str) -> Any:
    ended = call("tune", str(model), "--data", data, "--out", "tuned", *more)
    assert ended.returncode == 0, ended.stderr
    return ended


@pytest.mark.parametrize("place", ["run", "run/training/checkpoints/step-00000004", "hf"])
@pytest.mark.parametrize(("method", "lr"), [("full", FULL_LR), (ADAPTER, ADAPTER_LR)])
def test_any_model_is_tuned_from_its_weights_with_the_settings_of_the_method(
    place: str, method: str, lr: float, models: Path, data: str, prepared: dict, call, tmp_path: Path
) -> None:
    tuned(call, models / place, data, "--method", method)
    assert [*prepared] == ["train", "answers"]
    config = prepared["train"]
    start = Path(config.training.start_from)
    assert start == (tmp_path / "tuned/imported/step-00000000" if place == "hf" else next(models.rglob("step-*4")))
    assert (
        Checkpoint.open(start).plan.model.of_weights()
        == config.plan.model.model_copy(update={"adapters": ()}).of_weights()
    )
    assert config.training.lr == lr and bool(config.plan.model.adapters) == (method != "full")
    assert config.training.weight_decay == 0 and config.training.evaluation.limit == 100  # none of the pretraining's
    assert bool(config.generation.prompts) == (place != "hf")  # those of the demo are of its fairy tales
    packed = json.loads((tmp_path / "tuned/tokens/manifest.json").read_text())["packed"]
    assert config.plan.model.sequence == packed["sequence"] <= 96
    read = config.training.steps * config.plan.batch.sequences
    assert 3 * packed["train"]["bins"] <= read < 3 * packed["train"]["bins"] + config.plan.batch.sequences


@pytest.fixture
def pairs(tmp_path: Path) -> str:
    rows = [{"prompt": f"What follows {n}?", "chosen": f"{n + 1}.", "rejected": f"{n}!"} for n in range(20)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return "pairs.jsonl"


def test_preference_pairs_are_tuned_with_their_objective(
    models: Path, pairs: str, prepared: dict, call, tmp_path: Path
) -> None:
    told = tuned(call, models / "run", pairs, "--method", f"{ADAPTER},dpo").stdout
    assert re.search(r"train: \d+ pairs in \d+ sequences", told)
    assert [*prepared] == ["train"]
    config = prepared["train"]
    assert (config.training.objective.method, config.training.lr) == ("dpo", ADAPTER_PAIRS_LR)
    assert config.plan.model.adapters


def test_data_of_the_other_kind_is_refused(models: Path, data: str, pairs: str, call) -> None:
    for method, file in (("full", pairs), ("full,dpo", data)):
        ended = call("tune", str(models / "run"), "--data", file, "--out", "tuned", "--method", method)
        assert ended.returncode == 4 and file in ended.stderr, ended.stderr


@pytest.mark.broad
def test_the_first_loss_of_preferences_is_the_logarithm_of_two(models: Path, pairs: str, call, tmp_path: Path) -> None:
    tuned(call, models / "run", pairs, "--method", "full,dpo", "--steps", "1", "--batch", "2", *SLOW_HOST)
    assert losses(tmp_path / "tuned") == [pytest.approx(math.log(2), abs=1e-6)]


def test_settings_of_the_user_hold(models: Path, data: str, prepared: dict, call) -> None:
    more = ["--steps", "7", "--lr", "0.5", "--set", "plan.model.sequence=48", "--batch", "3", "--method", "full"]
    tuned(call, models / "run", data, *more)
    config = prepared["train"]
    assert (config.training.steps, config.training.lr, config.plan.batch.sequences) == (7, 0.5, 3)
    assert (config.plan.model.sequence, config.plan.model.max_positions) == (48, 96)
    assert config.training.warmup_tokens <= 7 * 3 * 48


def test_a_model_trained_on_shorter_sequences_reads_as_many_positions_as_before(models: Path, tmp_path: Path) -> None:
    plan = plan_of("llama", sequence=48, model={"max_positions": 96})
    shorter = write_checkpoint(tmp_path, plan, step=4)
    long = [Request(" ".join(TEXTS)[:400], " yes")]
    before, after = (
        NativeScorer.open(place, tmp_path / "tokenizer.json").loglikelihood(long)
        for place in (models / "run" / "training" / "checkpoints", shorter)
    )
    assert before == after and before[0].truncated
    export_hf(Checkpoint.open(shorter), tmp_path / "hf", tokenizer=None)
    assert read_settings(tmp_path / "hf" / "config.json")["max_position_embeddings"] == 96
    assert plan_of("llama", sequence=192, model={"max_positions": 96}).model.in_use.sequence == 192  # trained on longer


def test_tokens_of_the_same_conversations_are_kept_and_of_others_made_anew(
    models: Path, data: str, prepared: dict, call, tmp_path: Path
) -> None:
    assert "up to date" not in tuned(call, models / "run", data, "--method", "full").stdout
    assert "up to date" in tuned(call, models / "run", data, "--method", ADAPTER).stdout
    with (tmp_path / data).open("a") as file:
        file.write((tmp_path / data).read_text().splitlines()[0] + "\n")
    assert "up to date" not in tuned(call, models / "run", data, "--method", "full").stdout


def test_making_tokens_leaves_the_config_of_the_run_as_it_was(
    models: Path, data: str, prepared: dict, call, tmp_path: Path
) -> None:
    config = tmp_path / "tuned" / "config.json"
    tuned(call, models / "run", data, "--method", "full")
    assert not config.exists()
    config.write_text(before := (models / "run" / "config.json").read_text())
    tuned(call, models / "run", data, "--method", "full", "--set", "plan.model.sequence=64")
    assert config.read_text() == before


def test_a_run_is_not_tuned_in_place(models: Path, data: str, call) -> None:
    ended = call("tune", str(models / "run"), "--data", data, "--out", str(models / "run"), "--method", "full")
    assert ended.returncode == 2 and "give another --out" in ended.stderr


def test_a_model_of_learned_positions_and_bf16_keeps_its_length_and_its_dtype(
    data: str, prepared: dict, call, tmp_path: Path
) -> None:
    plan = plan_of("gpt", precision={"weights": "bf16"})
    (tmp_path / "gpt").mkdir()
    checkpoint = Checkpoint.open(write_checkpoint(tmp_path / "gpt", plan))
    export_hf(checkpoint, tmp_path / "hf", tokenizer=tmp_path / "gpt" / "tokenizer.json")
    for place in ("hf", "gpt/checkpoints/step-00000004"):
        tuned(call, tmp_path / place, data, "--method", "full")
        config = prepared["train"]
        assert config.plan.model.sequence == plan.model.sequence and config.plan.precision.weights == "bf16"
        shutil.rmtree(tmp_path / "tuned")


def test_a_dry_run_tells_what_would_be_trained_and_writes_nothing(
    models: Path, data: str, call, tmp_path: Path
) -> None:
    told = tuned(call, models / "run", data, "--method", "full", "--dry-run").stdout
    assert re.search(r"train: \d+ conversations in \d+ sequences of \d+ tokens", told) and "4 steps take" in told
    assert re.search(r"the [\d,]+ tokens of \d+ answers are trained on, of [\d,]+ in all", told)
    told = tuned(call, models / "run", data, "--method", "full", "--dry-run", "--sequence", "30").stdout
    assert re.search(r"have more than 30 tokens, the limit \(--sequence\): [\d,]+ tokens of their answers \(", told)
    assert sorted(path.name for path in tmp_path.iterdir()) == [data]


def test_the_template_of_the_model_is_kept_and_one_that_is_given_replaces_it(
    models: Path, data: str, prepared: dict, call, tmp_path: Path
) -> None:
    folder = shutil.copytree(models / "hf", tmp_path / "hf")
    own = CHATML.replace("'\\n'", "'\\n\\n'")
    (folder / "chat_template.jinja").write_text(own)
    tuned(call, folder, data, "--method", "full")
    assert (tmp_path / "tuned/tokens/chat_template.jinja").read_text() == own
    (tmp_path / "other.jinja").write_text(CHATML)
    tuned(call, folder, data, "--method", "full", "--template", "other.jinja")
    assert (tmp_path / "tuned/tokens/chat_template.jinja").read_text() == CHATML


def test_a_prepared_run_has_all_that_a_training_reads(models: Path, data: str, prepared: dict, call, tmp_path) -> None:
    told = tuned(call, models / "hf", data, "--method", "full", "--prepare").stdout
    assert "trivium train --out tuned" in told and prepared == {}
    config = resolve(Given(str(tmp_path / "tuned"))).checked()
    assert Path(config.training.start_from).is_dir() and config.plan.model.documents == "apart"


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("--method", "lorra"), 2, "--method lorra: there is no method 'lorra'"),
        (("--data", "none.jsonl"), 4, "--data none.jsonl does not exist"),
        (("--out", "."), 2, "lies in --data"),
        (("--data", "unanswered.jsonl"), 4, "line 2: "),
        *((("--epochs", epochs), 2, f"--epochs ({epochs}) must be above 0") for epochs in ("-1", "0", "nan", "inf")),
    ],
)
def test_what_cannot_be_tuned_is_refused_before_anything_is_written(
    words: tuple[str, ...], code: int, says: str, models: Path, data: str, call, tmp_path: Path
) -> None:
    row = (tmp_path / data).read_text().splitlines()[0]
    unanswered = json.dumps({"messages": [{"role": "user", "content": "What?"}]})
    (tmp_path / "unanswered.jsonl").write_text(f"{row}\n{unanswered}\n")
    options = {"--data": data if words[0] != "--out" else ".", "--out": "tuned", "--method": "full"} | dict([words])
    ended = call("tune", str(models / "run"), *(word for pair in options.items() for word in pair))
    assert ended.returncode == code and says in ended.stderr, ended.stderr
    assert not (tmp_path / "tuned").exists()


@pytest.mark.parametrize("place", ["run", "hf"])
@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_settings_that_the_weights_do_not_have_are_refused(
    place: str, more: tuple[str, ...], models: Path, data: str, call, tmp_path: Path
) -> None:
    layers = plan_of("llama").model.layers
    ended = call("tune", str(models / place), "--data", data, "--out", "tuned", "--layers", str(layers + 1), *more)
    assert ended.returncode == 2, ended.stderr
    assert f"plan.model.layers: {layers} -> {layers + 1}" in ended.stderr and "leave them out" in ended.stderr
    assert not (tmp_path / "tuned").exists()


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_a_model_with_adapters_is_tuned_with_the_same_or_merged_before(
    more: tuple[str, ...], models: Path, data: str, prepared: dict, call, tmp_path: Path
) -> None:
    run = shutil.copytree(models / "run", tmp_path / "adapted")
    shutil.rmtree(run / "training" / "checkpoints")
    write_checkpoint(
        run / "training", plan_of("llama", sequence=96, model={"adapters": [{"settings": {"r": 2}}]}), step=4
    )
    refused = call("tune", "adapted", "--data", data, "--out", "tuned", "--method", "full", *more)
    assert refused.returncode == 2 and not (tmp_path / "tuned").exists(), refused.stderr
    merging, setting = re.search(r"(checkpoint merge \S+) and .*: --set (.*)$", refused.stderr).groups()
    assert call(*shlex.split(merging)).returncode == 0
    for words in (["adapted", "--set", *shlex.split(setting)], ["adapted/merged/step-00000004"]):
        ended = call("tune", *words, "--data", data, "--out", "tuned", "--method", "full", "--redo", *more)
        assert ended.returncode == 0, ended.stderr


def test_a_model_without_a_tokenizer_is_refused(models: Path, data: str, call, tmp_path: Path) -> None:
    folder = shutil.copytree(models / "hf", tmp_path / "bare")
    (folder / "tokenizer.json").unlink()
    ended = call("tune", "bare", "--data", data, "--out", "tuned", "--method", "full")
    assert ended.returncode == 4 and "tokenizer.json" in ended.stderr


def test_processes_of_torchrun_are_sent_to_a_prepared_run(models: Path, data: str, call, monkeypatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.setenv(name, "1")
    ended = call("tune", str(models / "run"), "--data", data, "--out", "tuned", "--method", "full")
    assert ended.returncode == 2 and "--prepare" in ended.stderr


@pytest.mark.broad
def test_a_run_is_resumed_exactly_in_another_layout_reported_and_exported(
    models: Path, data: str, call, tmp_path: Path
) -> None:
    more = ["--method", "full", "--set", "training.decay=constant", "--batch", "2", *SLOW_HOST]
    tuned(call, models / "hf", data, *more, "--steps", "4")
    whole = losses(tmp_path / "tuned")
    (tmp_path / "tuned").rename(tmp_path / "whole")
    tuned(call, models / "hf", data, *more, "--steps", "2")
    told = tuned(call, models / "hf", data, *more, "--steps", "4", "--tp", "2", "--micro-batch", "1").stdout
    assert losses(tmp_path / "tuned") == pytest.approx(whole, rel=1e-5) and len(whole) == 4
    assert re.search(r"exactly right of \d+ held-out answers?: \d+ before the training \(\d+\.\d %, ", told)
    assert "up to date" in tuned(call, models / "hf", data, *more, "--steps", "4", "--tp", "2").stdout
    reported = call("report", "tuned")
    assert reported.returncode == 0 and reported.stdout.endswith("chat tuned\n"), reported.stdout
    assert json.loads((tmp_path / "tuned/report.json").read_text())["answers"]["after"]["n"] > 0
    shown = call("data", "show", "tuned", "--step", "1", "--row", "0").stdout
    assert "questions.jsonl:" in shown
    assert call("checkpoint", "export", "exported", "--out", "tuned").returncode == 0
    template = (tmp_path / "exported/chat_template.jinja").read_text()
    assert template == (tmp_path / "tuned/tokens/chat_template.jinja").read_text()


def losses(run: Path) -> list[float]:
    return [record["loss"] for record in records(run / "training" / METRICS) if "loss" in record]


def test_the_template_is_exported_with_the_token_that_ends_an_answer_as_one_more_end(
    models: Path, tmp_path: Path
) -> None:
    words = shutil.copytree(models / "run" / "tokens", tmp_path / "tokens") / "tokenizer.json"
    source = "{% for message in messages %}{{ message.content + '!' }}{% endfor %}"
    (words.parent / "chat_template.jinja").write_text(source)
    export_hf(Checkpoint.open(next(models.rglob("step-*4"))), tmp_path / "hf", tokenizer=words)
    assert (tmp_path / "hf" / "chat_template.jinja").read_text() == source
    ends = json.loads((tmp_path / "hf" / "generation_config.json").read_text())["eos_token_id"]
    tokenizer = load_tokenizer(words)
    assert ends == [tokenizer.end_of_text, *tokenizer.encode("!")]
    import_hf(tmp_path / "hf", tmp_path / "back")
    assert (tmp_path / "back" / "chat_template.jinja").read_text() == source


@pytest.mark.broad
def test_adapters_leave_the_weights_of_the_model_as_they_were(models: Path, data: str, call, tmp_path: Path) -> None:
    tuned(call, models / "run", data, "--method", ADAPTER, "--steps", "2", "--lr", "0.01", "--batch", "2", *SLOW_HOST)
    before, after = (
        Checkpoint.open(next(root.rglob(f"step-0000000{step}")))
        for root, step in ((models / "run", 4), (tmp_path / "tuned", 2))
    )
    common = [name for name in before.manifest["tensors"] if name.startswith("weights/")]
    for name in common:
        assert before.manifest["tensors"][name]["shape"] == after.manifest["tensors"][name]["shape"]
    added = [name for name in after.manifest["tensors"] if ".adapter." in name]
    assert common and added


def test_the_program_of_the_tutorial_writes_conversations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "tuning.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(program, "docs/tuning.md", "exec"), {})
    found = list(read_conversations(tmp_path / "questions.jsonl"))
    assert len(found) == len({one.turns for one in found}) == 2000
    assert json.loads(found[0].turns[1].content).keys() == {"who", "what", "where"}


def test_every_row_of_packed_conversations_is_whole(models: Path, data: str, prepared: dict, call, tmp_path) -> None:
    tuned(call, models / "run", data, "--method", "full")
    sequence = prepared["train"].plan.model.sequence
    dataset = TokenDataset.open(tmp_path / "tuned" / "tokens", "train", sequence=sequence, seed=1)
    for number in range(dataset.num_samples):
        parts = [span for span in dataset.documents_of(number) if span.document.startswith("questions.jsonl:")]
        assert parts and all(span.begin == 0 for span in parts)


@pytest.fixture(scope="module")
def teacher(models: Path) -> Path:
    """The checkpoint of other weights with the tokenizer of the others."""
    root = models / "teacher"
    root.mkdir()
    return write_checkpoint(root, plan_of("llama", sequence=96), step=9)


@pytest.mark.broad
def test_a_teacher_reads_the_tokens_once_and_its_probabilities_are_learned(
    models: Path, teacher: Path, data: str, call, tmp_path: Path
) -> None:
    more = ["--method", "full", "--teacher", str(teacher), "--batch", "2", "--tp", "2", *SLOW_HOST]
    told = tuned(call, models / "run", data, *more, "--steps", "2").stdout
    assert re.search(r"the teacher, \S+, reads \d+ sequences once: about ", told)
    about = json.loads((tmp_path / "tuned/tokens/teacher.json").read_text())
    assert about["of"] == Checkpoint.open(teacher).manifest["sha256"]
    steps = [record for record in records(tmp_path / "tuned/training" / METRICS) if "divergence" in record]
    assert len(steps) == 2 and all(record["divergence"] > 0 for record in steps)
    more += ["--set", "training.decay=constant", "--steps"]
    # With --redo the tokens are made again, and no teacher has read those; a longer training has them already.
    assert "reads" in tuned(call, models / "run", data, *more, "3", "--redo").stdout
    assert "reads" not in tuned(call, models / "run", data, *more, "4").stdout


def test_a_teacher_of_another_tokenizer_or_of_pairs_is_refused(
    models: Path, teacher: Path, data: str, pairs: str, call, tmp_path: Path
) -> None:
    root = shutil.copytree(models / "teacher", tmp_path / "other")
    other, words = root / "checkpoints" / teacher.name, root / "tokenizer.json"
    words.write_text(words.read_text() + "\n")
    ended = call("tune", str(models / "run"), "--data", data, "--out", "tuned", "--teacher", str(other))
    assert ended.returncode == 4 and f"--teacher {other} has the tokenizer" in ended.stderr, ended.stderr
    both = ["--data", pairs, "--out", "tuned", "--teacher", str(teacher), "--method", "dpo"]
    ended = call("tune", str(models / "run"), *both)
    assert ended.returncode == 2 and "exclude each other" in ended.stderr


def test_a_dry_run_tells_what_a_teacher_and_a_reference_read(
    models: Path, teacher: Path, data: str, pairs: str, call, tmp_path: Path
) -> None:
    told = tuned(call, models / "run", data, "--teacher", str(teacher), "--dry-run").stdout
    assert re.search(r"before the training, the teacher, .* reads \d+ sequences once: about ", told)
    told = tuned(call, models / "run", pairs, "--method", "dpo", "--dry-run").stdout
    assert re.search(r"before the training, the model, as the reference, reads \d+ sequences once", told)
    assert "forward passes" in told
