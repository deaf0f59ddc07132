"""`trivium generate`, `serve`, `bias`, `incontext`: every option once, and what is missing is named."""

import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys

import pytest
import yaml

from evaluation.benchmark_test import HANS
from evaluation.models import TEXTS, plan_of, write_checkpoint
from hub_test import FakeHub
from trivium.checkpoint.load import Checkpoint
from trivium.cli.benchmarks import answered
from trivium.cli.main import command_line
from trivium.cli.run_config import Given, resolve
from trivium.cli.serve import _listener
from trivium.comms import launch
from trivium.config import to_tree
from trivium.errors import CheckpointError, ConfigError, DataError, MachineError
from trivium.interchange.export import export_hf
from trivium.plan.layout import Layout
from trivium.provenance import STAMP, describe, publishing, write_json
from trivium.serving.config import ServeConfig
from trivium.tokens.tokenizer import train_tokenizer

FEW = ("generation.sampling.max_tokens=4", "generation.sampling.temperature=0")
QUICK = ("bias.permutations=20", "bias.resamples=20")
FEW_OCCUPATIONS = (*QUICK, "bias.occupations=3")
SMALL = (*FEW_OCCUPATIONS, "bias.cooccurrence.samples=2", "bias.cooccurrence.tokens=4",
         'bias.cooccurrence.axes=["gender"]', "bias.shots=[0,1]")  # fmt: skip


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A finished run of two checkpoints, a folder of Hugging Face, and rows of two tasks."""
    root = tmp_path_factory.mktemp("asked")
    run = root / "run"
    (run / "training").mkdir(parents=True)
    for step in (4, 8):
        newest = write_checkpoint(run / "training", plan_of(sequence=96), step=step)
    (run / "tokens").mkdir()
    (run / "training" / "tokenizer.json").rename(run / "tokens" / "tokenizer.json")
    for folder in ("tokens", "training"):
        write_json(run / folder / STAMP, describe(verb=folder, config={}, inputs={}))
    export_hf(Checkpoint.open(newest), root / "hf", tokenizer=run / "tokens" / "tokenizer.json")
    rows = {"hans": HANS, "lambada": [{"text": text} for text in TEXTS[:4]], "empty": []}
    for name, some in rows.items():
        (root / "data" / name).mkdir(parents=True)
        (root / "data" / name / "test.jsonl").write_text("".join(json.dumps(r) + "\n" for r in some))
    return root


@pytest.fixture
def run(root):
    return root / "run"


def trivium(*words, sets=()):
    words = [*map(str, words), *(w for s in sets for w in ("--set", s))]
    command_line()(words, prog_name="trivium", standalone_mode=False)


def read(path):
    return json.loads(path.read_text())


# generate


def said(capsys, *words, sets=FEW):
    trivium("generate", *words, sets=sets)
    return capsys.readouterr().out


def test_generate_continues_a_prompt_of_a_run_a_checkpoint_and_a_folder_alike(root, run, capsys):
    newest = run / "training" / "checkpoints" / "step-00000008"
    texts = {said(capsys, place, "--prompt", "Item 7") for place in (run, newest, root / "hf")}
    assert len(texts) == 1 and texts.pop().startswith("Item 7")
    assert said(capsys, "--out", run, "--prompt", "Item 7").startswith("Item 7")


def test_generate_takes_every_setting_of_how_text_is_drawn(run, capsys):
    more = ("temperature=1.5", "top_k=50", "top_p=0.95", "repetition_penalty=1.2", "stop=[zzz]", "seed=7")
    sets = ("generation.sampling.max_tokens=6", *(f"generation.sampling.{m}" for m in more), "generation.logprobs=3")
    first, again = (said(capsys, run, "--prompt", "Item", sets=sets) for _ in range(2))
    assert first == again
    told = first.splitlines()[-6:]  # a token a line: itself, its log-probability, and the 3 likeliest
    assert all(line.startswith("  ") and line.count(", ") >= 2 for line in told)
    other = [s.replace("seed=7", "seed=8") for s in sets]
    assert said(capsys, run, "--prompt", "Item", sets=other) != first


def test_generate_reads_prompts_of_each_kind_of_file_and_the_shipped_ones(run, tmp_path, capsys):
    files = {
        "mine.txt": "Item 1\n\nItem 2\n",
        "mine.jsonl": '{"prompt": "Item 1"}\n{"prompt": "Item 2"}\n',
        "mine.yaml": yaml.safe_dump({"prompts": ["Item 1", "Item 2"], "sampling": {"max_tokens": 4, "temperature": 0}}),
    }  # fmt: skip
    found = []
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        found.append(said(capsys, run, "--file", tmp_path / name, sets=(*FEW, "generation.together=1")))
    assert found[0] == found[1] == found[2] and found[0].count("---") == 2
    assert said(capsys, run, "--file", "operators").count("---") >= 3


def test_generate_lets_what_is_set_go_before_the_settings_of_a_file(run, tmp_path, capsys):
    (tmp_path / "a.txt").write_text("Item 7\n")
    (tmp_path / "a.yaml").write_text("prompts: [Item 7]\nsampling: {temperature: 2, max_tokens: 30}\n")
    plain, own = (said(capsys, run, "--file", tmp_path / name) for name in ("a.txt", "a.yaml"))
    assert own == plain


def test_generate_answers_line_by_line(run, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("Item 1\n\nItem 2\n"))
    assert said(capsys, run, "--interactive").count("Item") >= 2


def test_generate_keeps_the_samples_of_a_run_and_several_ranks_write_the_same(run, capsys):
    sets = (*FEW, "generation.prompts=[Item 1,Item 2]")
    trivium("generate", "--out", run, sets=sets)
    alone = read(run / "generate" / "samples.json")
    assert [s["prompt"] for s in alone] == ["Item 1", "Item 2"]
    assert "up to date" in said(capsys, "--out", run, sets=sets)
    trivium("generate", "--out", run, "--redo", sets=(*sets, "generation.layout.tensor=2"))
    assert read(run / "generate" / "samples.json") == alone


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_prompt_that_the_model_does_not_see_whole_is_told_of(run, tmp_path, capfd, ranks):
    sets = (*FEW, f"generation.layout.tensor={ranks}")
    long = "Item 7. " * 200
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps({"prompt": p}) + "\n" for p in ("Item 7", long)))
    for words, lost in (
        (("--prompt", long), "1 of 1 prompt"),
        (("--file", tmp_path / "prompts.jsonl"), "1 of 2 prompts"),
    ):
        trivium("generate", run, *words, sets=sets)
        warned = [line for line in capfd.readouterr().err.splitlines() if line.startswith("warning:")]
        (told,) = warned
        assert f"{lost} lost the beginning: longer than the model's 96 tokens, by up to " in told
    trivium("generate", run, "--prompt", "Item 7", sets=sets)
    assert "warning" not in capfd.readouterr().err


def test_of_ranks_of_torchrun_all_write_the_samples_and_the_first_keeps_them(run, tmp_path, monkeypatch):
    run, asked = shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns("generate")), []
    monkeypatch.setattr("trivium.cli.generate.answered", lambda *words: asked.append(words))
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    with publishing(run / "generate", verb="generate", config={}, inputs={}):  # as the first rank does meanwhile
        trivium("generate", "--out", run, sets=FEW)
        assert len(asked) == 1
    monkeypatch.setattr("trivium.cli.generate.is_current", lambda *words: True)
    trivium("generate", "--out", run, sets=FEW)
    assert len(asked) == 1, "the first rank has nothing to write either"
    trivium("generate", "--out", run, "--redo", sets=FEW)
    assert len(asked) == 2


def test_generate_names_what_it_cannot_do(root, run, tmp_path):
    for words, error, message in (
        ((run, "--prompt", "a", "--file", "riddles"), ConfigError, "give one of them"),
        ((run, "--file", "ridles"), ConfigError, "did you mean 'riddles'"),
        ((run, "--file", tmp_path / "none.txt"), DataError, "cannot be read"),
        ((tmp_path / "none", "--prompt", "a"), DataError, "does not exist"),
        ((tmp_path, "--prompt", "a"), CheckpointError, "holds no checkpoint"),
        (("--out", tmp_path / "new", "--prompt", "a"), DataError, "missing or unfinished"),
    ):
        with pytest.raises(error, match=message):
            trivium("generate", *words, sets=FEW)
    for named in (("--prompt", "a"), ("--file", "riddles"), ("--interactive",)):
        with pytest.raises(
            ConfigError, match=rf"--set generation\.prompts: `trivium generate` does not read this; {named[0]} gives"
        ):
            trivium("generate", run, *named, sets=(*FEW, "generation.prompts=[Item]"))
    with pytest.raises(ConfigError, match=r"generation\.sampling\.top_p"):
        trivium("generate", run, "--prompt", "a", sets=("generation.sampling.top_p=2",))


def test_a_checkpoint_without_its_tokenizer_and_one_of_another_model_are_refused(root, run, tmp_path):
    bare = tmp_path / "bare"
    shutil.copytree(run / "training" / "checkpoints" / "step-00000008", bare)
    for verb, words in (
        ("generate", ("--prompt", "a")),
        ("serve", ("--set", "serve.port=0")),
        ("incontext", ("--data", root / "data")),
    ):
        with pytest.raises(CheckpointError, match="has no tokenizer.json with it"):
            trivium(verb, bare, *words)
    train_tokenizer(TEXTS, 420).save(bare / "tokenizer.json")
    with pytest.raises(CheckpointError, match=r"420 ids, but the model of .* predicts"):
        trivium("generate", bare, "--prompt", "a")
    known = write_checkpoint(_made(tmp_path / "known"), plan_of(), data={"tokenizer_sha256": "0" * 64})
    with pytest.raises(CheckpointError, match="its ids have other meanings"):
        trivium("generate", known, "--prompt", "a")


def _made(folder):
    folder.mkdir()
    return folder


# serve


class Served(list):
    """The configs with which `trivium serve` would listen, and a hook for requests while it does."""

    def while_it_runs(self, config, host, port):
        pass


@pytest.fixture
def served(monkeypatch):
    pytest.importorskip("fastapi")
    uvicorn = pytest.importorskip("uvicorn")
    found = Served()

    class Server:
        def __init__(self, config):
            self.config = config

        def run(self, sockets):
            (place,) = sockets
            found.append((self.config, place.getsockname()))
            found.while_it_runs(self.config, *place.getsockname())

    monkeypatch.setattr(uvicorn, "Server", Server)
    return found


def test_serve_answers_within_the_limits_it_was_given(run, served, tmp_path, capsys):
    from starlette.testclient import TestClient

    (tmp_path / "keys").write_text("0123456789abcdef0123\n")
    sets = ("serve.port=0", "serve.host=0.0.0.0", f"serve.keys={tmp_path / 'keys'}", "serve.hosts=[model.example]",
            "serve.max_tokens=4", "serve.texts=2", "serve.logprobs=2", "serve.queue=3", "serve.deadline_seconds=9",
            "serve.together=2", "serve.body_bytes=500")  # fmt: skip
    head = {"authorization": "Bearer 0123456789abcdef0123"}

    def while_it_runs(config, host, port):
        assert f"serving run (step-00000008) at http://0.0.0.0:{port}/" in capsys.readouterr().out
        assert host == "0.0.0.0" and port > 0 and config.proxy_headers is False
        with TestClient(config.app, base_url="http://model.example") as client:

            def ask(**more):
                return client.post("/v1/completions", json={"prompt": "Item", "max_tokens": 2, **more}, headers=head)

            assert ask().status_code == 200 and ask(model="run").status_code == 200
            for more in ({"max_tokens": 5}, {"n": 3}, {"logprobs": 3}):
                assert ask(**more).status_code == 400
            assert ask(prompt="x" * 600).status_code == 413
            assert client.post("/v1/completions", json={"prompt": "Item"}).status_code == 401

    served.while_it_runs = while_it_runs
    trivium("serve", run, sets=sets)
    assert len(served) == 1  # and nothing above was skipped


def test_a_port_that_is_taken_is_told_before_a_model_is_read(run, served):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(MachineError, match=rf"serve\.port {port}: this machine cannot listen there"):
            trivium("serve", run, sets=(f"serve.port={port}",))
    assert not served


def test_of_two_servers_that_begin_at_one_port_the_second_is_told_before_a_model_is_read(run, served):
    with _listener(ServeConfig(port=0)) as first:
        port = first.getsockname()[1]
        with pytest.raises(MachineError, match=rf"serve\.port {port}: this machine cannot listen there"):
            trivium("serve", run, sets=(f"serve.port={port}",))
    assert not served


@pytest.mark.broad
def test_a_server_that_is_asked_to_end_removes_what_it_brought_in(root, tmp_path):
    """SIGTERM is how services are ended; each would leave a copy of its model."""
    pytest.importorskip("uvicorn")
    words = [sys.executable, "-m", "trivium", "serve", str(root / "hf"), "--set", "serve.port=0"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) as server:
        assert "serving hf" in server.stdout.readline()
        assert list(tmp_path.glob("trivium-hf-*"))
        server.terminate()
        assert server.wait(60) in (128 + signal.SIGTERM, -signal.SIGTERM)
    assert not list(tmp_path.iterdir())


@pytest.mark.broad
@pytest.mark.parametrize(("ranks", "number"), [(2, signal.SIGTERM), (1, signal.SIGHUP)])
def test_a_verb_that_is_asked_to_end_removes_what_it_brought_in(root, tmp_path, ranks, number):
    """Schedulers and terminals end a command like this. Its ranks end with it, though each may wait for another."""
    sets = ("--set", f"generation.layout.data={ranks}", "--set", "generation.sampling.max_tokens=4")
    heard = ["env", "--default-signal=HUP"]  # who runs these tests after nohup ignores it
    words = [*heard, sys.executable, "-m", "trivium", "generate", str(root / "hf"), "--interactive", *sets]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as asked:
        asked.stdin.write("Item 7\n")
        asked.stdin.flush()
        assert asked.stdout.readline()
        assert list(tmp_path.glob("trivium-hf-*"))
        asked.send_signal(number)
        assert asked.wait(60) == 128 + number
    assert not list(tmp_path.iterdir())


def test_a_forked_rank_dies_of_the_signal_itself(run, capsys):
    """During a collective Python's own handler would never run."""
    heard = []
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append(1))

    def work(scorer):
        os.kill(os.getpid(), signal.SIGTERM)
        return {}

    try:
        with pytest.raises(launch.RankFailed, match="killed by SIGTERM"):
            place = run / "training" / "checkpoints" / "step-00000008"
            answered(work, place, run / "tokens" / "tokenizer.json", Layout(data=2))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not heard


def test_a_folder_of_hugging_face_is_served_under_its_own_name(root, served, capsys):
    trivium("serve", root / "hf", sets=("serve.port=0",))
    assert "serving hf (step-00000000) at http://127.0.0.1:" in capsys.readouterr().out


def test_a_run_that_is_named_is_asked_under_its_own_settings(run, served, tmp_path, monkeypatch, capsys):
    """And not under those of runs/demo, which may lie in the same folder."""
    monkeypatch.chdir(tmp_path)
    own = shutil.copytree(run, tmp_path / "own", ignore=shutil.ignore_patterns("config.json", "generate"))
    for place, tokens in ((tmp_path / "runs" / "demo", 1), (own, 3)):
        place.mkdir(parents=True, exist_ok=True)
        sets = (f"generation.sampling.max_tokens={tokens}", f"serve.queue={tokens}", "serve.port=0",
                "generation.logprobs=0", "generation.prompts=[Item]")  # fmt: skip
        write_json(place / "config.json", to_tree(resolve(Given("demo", sets))))
    for place in (own, own / "training" / "checkpoints" / "step-00000008"):
        trivium("generate", place)  # the prompts of the config, and a line for each token
        assert sum(line.startswith("  '") for line in capsys.readouterr().out.splitlines()) == 3
        assert not (own / "generate").exists()
        trivium("serve", place)
        assert served.pop()[0].app.app.state.server.limits.queue == 3
    (own / "config.json").unlink()
    trivium("generate", own, "--prompt", "Item", sets=("generation.sampling.max_tokens=2",))
    assert "  '" not in capsys.readouterr().out


def test_options_that_would_change_nothing_are_refused(root, run, served):
    published = (
        "--tasks",
        "hans",
        "--data",
        root / "data",
        "--limit",
        "4",
        "--shots",
        "0",
        "--json",
        root / "x.json",
        "--every",
    )
    for option, value in (("--tasks", "hans"), ("--data", root / "data"), ("--limit", 4), ("--shots", 0)):
        with pytest.raises(ConfigError, match=f"{option}: for published tasks"):
            trivium("evaluate", "--out", run, option, value)
    with pytest.raises(ConfigError, match="--tasks, --data, --limit, --shots, --json, --every: for published"):
        trivium("evaluate", "--out", run, *published)
    for option in (("--out", run), ("--preset", "demo"), ("--redo",)):
        with pytest.raises(ConfigError, match=f"{option[0]}: for the tasks made of a run's own"):
            trivium("evaluate", run, *published, *option)
    for verb in ("generate", "serve"):
        with pytest.raises(ConfigError, match="--out .* is asked already; name one of the two"):
            trivium(verb, run, "--out", run)
    with pytest.raises(ConfigError, match="--redo: only samples that a run keeps"):
        trivium("generate", "--out", run, "--prompt", "a", "--redo")
    assert not served


@pytest.mark.parametrize("verb", ["evaluate", "generate", "bias", "prove", "serve"])
@pytest.mark.parametrize("named", [True, False], ids=["RUN", "--out RUN"])
def test_settings_that_a_verb_which_reads_a_training_does_not_use_are_refused(run, served, verb, named):
    """They stayed in the run's config, and the next training was set aside for them."""
    place = (run,) if named and verb in ("generate", "serve", "bias") else ("--out", run)
    of_its_own = "tokens.vocabulary=300" if verb == "prove" else "training.lr=0.5"
    for other in (of_its_own, "curate.dedup.threshold=0.5", "search.top=3"):
        with pytest.raises(ConfigError, match=f"^--set {other.split('=')[0]}: `trivium {verb}` does not read"):
            trivium(verb, *place, sets=("seed=3", other))
    if verb != "prove":
        with pytest.raises(ConfigError, match=r"^--set plan\.model\.hidden, --set plan\.layout\.tensor: "):
            trivium(verb, *place, sets=("plan.model.hidden=96", "plan.layout.tensor=2"))
    with pytest.raises(ConfigError, match="there is no such key"):
        trivium(verb, *place, sets=("curat.dedup=3",))
    assert not served


def test_serve_names_what_it_refuses(run, served, tmp_path, monkeypatch):
    (tmp_path / "short").write_text("short\n")
    for sets, error, message in (
        (("serve.host=0.0.0.0",), ConfigError, r"serve\.keys is not given"),
        ((f"serve.keys={tmp_path / 'short'}",), DataError, r"serve\.keys: .*shorter than 16"),
        (("serve.port=70000",), ConfigError, r"serve\.port"),
        (
            ("serve.tensor=3", "serve.port=0"),
            ConfigError,
            r"heads \(4\) must be a multiple of plan\.layout\.tensor \(3\)",
        ),
    ):
        with pytest.raises(error, match=message):
            trivium("serve", run, sets=sets)
    with pytest.raises(DataError, match="does not exist"):
        trivium("serve", tmp_path / "none", sets=("serve.port=0",))
    monkeypatch.setitem(__import__("sys").modules, "uvicorn", None)
    with pytest.raises(MachineError, match=r"'\.\[serve\]'"):
        trivium("serve", run)
    assert not served


# bias


def test_bias_measures_every_analysis_on_data_of_ones_own_and_along_the_training(run, tmp_path, capsys):
    (tmp_path / "work.txt").write_text("nurse\nminer\nteacher\n")
    for sex, pronoun in (("female", "she"), ("male", "he")):
        path = tmp_path / "own" / "winogender" / f"winogender_mc_{sex}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = [{"query": f"The {w} said {pronoun} would come. Who?", "choices": [f"the {w}", "the guest"], "gold": 0}
                for w in ("nurse", "miner", "teacher", "driver", "farmer", "baker")]  # fmt: skip
        path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    sets = (*SMALL, f"bias.occupation_list={tmp_path / 'work.txt'}", f"bias.data={tmp_path / 'own'}",
            "bias.analyses=[association,adjectives,sentiment,winogender]")  # fmt: skip
    pytest.importorskip("textblob", reason="textblob (extra bias) is not installed")
    trivium("bias", "--out", run, sets=sets)
    unheard = read(run / "bias" / "results.json")
    assert {e["measure"] for e in unheard["effects"]} == {"association", "winogender"}
    assert {e["measure"] for e in unheard["not_measured"]} == {"adjectives", "sentiment"}
    assert "not measured: sentiment, gender: " in capsys.readouterr().out
    # so small a model writes no adjective that anybody knows, so what it writes are the adjectives
    rows = map(json.loads, (run / "bias" / "texts.jsonl").read_text().splitlines())
    last = {(row["text"] + row["continuation"]).split()[-1].strip("\"'.,;:!?()[]").lower() for row in rows}
    lexicon = "".join(f"a\t{n}\t0.5\t0\t{w}#1\t\n" for n, w in enumerate(sorted(last), 1))
    (tmp_path / "words.txt").write_text(lexicon)
    sets += ("bias.cooccurrence.tagger=lexicon", f"bias.cooccurrence.lexicon={tmp_path / 'words.txt'}")
    trivium("bias", "--out", run, sets=sets)
    found = read(run / "bias" / "results.json")
    assert {o["occupation"] for o in found["occupations"]} == {"nurse", "miner", "teacher"}
    assert {e["measure"] for e in found["effects"]} == {"association", "adjectives", "sentiment", "winogender"}
    assert (run / "bias" / "texts.jsonl").read_text().count("\n") == len(found["prompts"]) * 2
    capsys.readouterr()
    trivium("bias", "--out", run, sets=sets)
    assert "up to date" in capsys.readouterr().out
    trivium("bias", run, "--every", sets=(*FEW_OCCUPATIONS, "bias.analyses=[association]"))
    series = read(run / "bias_series.json")
    assert [(c["step"], c["tokens"]) for c in series["checkpoints"]] == [(4, 4000), (8, 8000)]
    assert series["checkpoints"][-1]["sha256"] == found["model"]["sha256"]  # so the report notes another training
    assert "8,000 tokens" in capsys.readouterr().out


def test_bias_takes_no_option_that_would_not_count(run):
    with pytest.raises(ConfigError, match="--redo: --every always measures every checkpoint again"):
        trivium("bias", run, "--every", "--redo")
    with pytest.raises(ConfigError, match="--out runs/another: .* name one of the two"):
        trivium("bias", run, "--out", "runs/another")


def test_bias_names_what_is_missing(run, tmp_path):
    run = shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns("config.json"))
    (tmp_path / "one.txt").write_text("nurse\n")
    for sets, error, message in (
        (("bias.analyses=[winogender]",), DataError, r"bias\.data is not given"),
        (("bias.analyses=[winogender]", f"bias.data={tmp_path}"), DataError, r"bias\.data"),
        ((f"bias.occupation_list={tmp_path / 'none'}",), DataError, r"bias\.occupation_list: .* cannot be read"),
        ((f"bias.occupation_list={tmp_path / 'one.txt'}",), DataError, "names 1 occupations"),
        ((f"bias.cooccurrence.lexicon={tmp_path / 'none'}", "bias.analyses=[sentiment]"), DataError, "cannot be read"),
        (("bias.analyses=[asociation]",), ConfigError, r"bias\.analyses"),
    ):  # fmt: skip
        with pytest.raises(error, match=message):
            # What an earlier command set stays with the run: each says for itself which analysis it means.
            own = () if "analyses" in str(sets) else ("bias.analyses=[association]",)
            trivium("bias", "--out", run, "--redo", sets=(*QUICK, *own, *sets))
    with pytest.raises(DataError, match="missing or unfinished"):
        trivium("bias", "--out", tmp_path / "new")


def test_bias_of_a_model_that_is_no_run_is_printed_and_written_where_asked(root, run, tmp_path, capsys):
    file = tmp_path / "bias.json"
    sets = (*FEW_OCCUPATIONS, "bias.analyses=[association]")
    trivium("bias", root / "hf", "--json", file, sets=sets)
    assert "association" in capsys.readouterr().out or read(file)["effects"]
    assert read(file)["model"]["parameters"] > 0 and not (root / "hf" / "bias").exists()
    with pytest.raises(ConfigError, match="--redo: for the checkpoints of a run"):
        trivium("bias", root / "hf", "--redo", sets=sets)
    with pytest.raises(ConfigError, match="--json: a run keeps the results"):
        trivium("bias", run, "--json", file, sets=sets)


def test_a_model_of_the_hub_is_asked_as_the_folder_that_it_is(root, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "huggingface_hub", FakeHub(folder=root / "hf"))
    folder = said(capsys, root / "hf", "--prompt", "Item")
    assert said(capsys, "hf:org/name", "--prompt", "Item") == folder


# incontext

STUDY = ("compare_at=1", "draws=2", "orders=2")


def test_incontext_compares_models_and_checkpoints_with_every_setting(root, run, tmp_path, capsys):
    sets = (*STUDY, "wording=harness", "seed=3", "confidence=0.9", f"tokenizer={run / 'tokens' / 'tokenizer.json'}")
    options = ("--task", "hans", "--data", root / "data", "--limit", 6, "--shots", "0,2")
    trivium("incontext", run, root / "hf", *options, "--every", "--json", tmp_path / "out.json", sets=sets)
    found = read(tmp_path / "out.json")
    assert [m["model"]["step"] for m in found["models"]] == [4, 8, 0]  # a folder of Hugging Face has no steps
    assert found["config"]["wording"] == "harness" and found["config"]["limit"] == 6
    newest, folder = found["models"][1:]
    assert folder["shots"]["2"]["accuracies"] == newest["shots"]["2"]["accuracies"]
    assert {"constituent", "subsequence"} == set(newest["shots"]["2"]["margins_by_group"])
    assert [m["target"] for m in found["models"]] == [str(run), str(run), str(root / "hf")]
    told = capsys.readouterr().out
    assert "recency" in told and f"step-00000000 of {root / 'hf'}" in told
    trivium("incontext", run, *options, "--json", tmp_path / "two.json", sets=(*sets, "layout.pipeline=2"))
    assert read(tmp_path / "two.json")["models"][0]["shots"]["2"]["accuracies"] == newest["shots"]["2"]["accuracies"]


def test_incontext_names_what_it_cannot_study(root, run, tmp_path):
    data = ("--data", root / "data")
    for words, sets, error, message in (
        ((*data, "--task", "piqa"), (), DataError, "no rows of task piqa"),
        ((*data, "--task", "lambada"), (), DataError, "has no choices to score"),
        ((*data, "--task", "hants"), (), ConfigError, "there is no such task; did you mean 'hans'"),
        ((*data, "--shots", "0,x"), (), ConfigError, "are no numbers of shots"),
        ((*data, "--shots", "99999"), (), DataError, "lower --limit, --shots or compare_at"),
        ((*data,), ("orderz=1",), ConfigError, "orderz"),
        (("--data", tmp_path / "none"), (), DataError, "is not a directory"),
    ):
        with pytest.raises(error, match=message):
            trivium("incontext", run, *words, sets=sets)
    (tmp_path / "hans").mkdir()
    (tmp_path / "hans" / "test.jsonl").write_text("\n")
    with pytest.raises(DataError, match="has no rows"):
        trivium("incontext", run, "--data", tmp_path)
    (tmp_path / "hans" / "test.jsonl").write_text('{"premise": "a"}\n')
    with pytest.raises(DataError, match="there is no field"):
        trivium("incontext", run, "--data", tmp_path)


# evaluation while training


def test_a_training_is_not_begun_without_the_data_that_it_would_be_asked(root, run, tmp_path):
    from trivium.cli.options import given_for, open_run
    from trivium.cli.train import examined, job_for

    def ready(*sets):
        of = open_run(run, given_for(run, "demo", [f"training.evaluation.{s}" for s in sets]))
        return examined(job_for(of, tmp_path), of)[0]

    assert ready("every=0").examiner is None
    assert ready("every=5", f"data={root / 'data'}", "limit=4").examiner is not None
    for sets, error, message in (
        (("every=5", f"data={tmp_path / 'none'}"), DataError, "is not a directory"),
        (("every=5", f"data={root / 'data'}", "tasks=piqa"), DataError, "no rows of task piqa"),
        (("every=5", f"data={root / 'data'}", "tasks=hants"), ConfigError, "there is no such task"),
        (("every=-1",), ConfigError, r"training\.evaluation\.every"),
    ):
        with pytest.raises(error, match=message):
            ready(*sets)


@pytest.mark.parametrize("section", ["", "generation."], ids=["asked", "written"])
@pytest.mark.parametrize(
    ("degree", "says"),
    [
        ("tensor=3", r"^plan\.model\.heads \(4\) must be a multiple of plan\.layout\.tensor \(3\)"),
        ("context=2", r"^plan\.layout\.context is 2, and ranks that answer share no sequence"),
        ("pipeline=5", r"^plan\..*\(4\).*5"),
    ],
    ids=["tensor", "context", "pipeline"],
)
def test_a_layout_that_the_model_does_not_fit_is_refused_before_a_rank_starts(
    root, run, section, degree, says, monkeypatch
):
    def start(*given):
        raise AssertionError("a rank was started")

    monkeypatch.setattr(launch, "run_ranks", start)
    ways = {
        "": (("evaluate", run, "--data", "nowhere"), ("incontext", run, "--data", root / "data")),
        "generation.": (("generate", run, "--prompt", "a"), ("generate", run, "--file", "riddles")),
    }
    for words in ways[section]:
        with pytest.raises(ConfigError, match=says):
            trivium(*words, sets=(f"{section}layout.{degree}",))


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (("incontext", "RUN", "--task", "helaswag"), "--task"),
        (("evaluate", "RUN", "--tasks", "helaswag"), "--tasks"),
        (("corpus", "against", "helaswag", "bench.jsonl"), "TASKS"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_a_task_that_does_not_exist_is_blamed_on_what_named_it(run, words, field, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=f"^{field} helaswag: there is no such task; did you mean 'hellaswag'"):
        trivium(*(run if word == "RUN" else word for word in words))


def test_a_group_of_tasks_is_not_offered_where_one_is_asked_for(run):
    with pytest.raises(ConfigError, match="^--task mt-nlg: there is no such task; known: anli") as refused:
        trivium("incontext", run, "--task", "mt-nlg")
    assert str(refused.value).count("mt-nlg") == 1
