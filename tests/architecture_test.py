"""The rules of docs/architecture.md, checked. A finding names the line to change."""

import ast
import graphlib
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent / "src" / "trivium"

BASE = {
    "errors",
    "config",
    "units",
    "redact",
    "untrusted",
    "finite",
    "jsonlines",
    "seeds",
    "provenance",
    "progress",
    "mkl",
    "plain_yaml",
    "hub",
    "__version__",
}
# Package -> what it may import besides base and itself: a package, a folder, or one file.
MAY_IMPORT = {
    **{name: set() for name in BASE | {"optim", "report", "stores", "__init__"}},
    "corpus": {"stores"},
    "plan": {"optim"},
    "adapters": {"plan"},
    "objectives": {"plan"},
    "cost": {"plan", "optim", "objectives"},
    "planner": {"cost", "plan"},
    "tokens": {
        "stores",
        "corpus.publish.store",
        "corpus.document",
        "corpus.read.arrow",
        "corpus.read.parquet_headers",
        "plan.batch",
    },
    "kernels": {"optim"},
    "comms": {"plan"},
    "parallel": {"kernels", "comms", "plan", "optim", "objectives"},
    "model": {"objectives", "parallel", "kernels", "comms", "plan"},
    "checkpoint": {"stores", "plan", "kernels", "comms"},
    "training": {
        "stores",
        "objectives",
        "model",
        "tokens",
        "checkpoint",
        "parallel",
        "kernels",
        "comms",
        "cost.compute",
        "plan",
    },
    "certify": {"objectives", "training", "tokens.rows", "model", "parallel", "kernels", "comms", "cost", "plan"},
    "probe": {"planner.measured", "training", "tokens.rows", "parallel", "kernels", "comms", "plan"},
    "families": {"plan"},
    "interchange": {"families", "model", "checkpoint", "stores", "tokens", "plan"},
    # corpus: contamination is found with the n-grams that curation cuts out
    "evaluation": {"model", "tokens", "checkpoint", "interchange.target", "kernels", "comms", "plan", "corpus"},
    "recipes": {"tokens.manifest", "training.metrics"},
    "suite": {"serving", "evaluation", "report", "training", "tokens", "checkpoint", "plan"},
    "serving": {"evaluation", "model", "tokens", "comms", "plan"},
    "__main__": {"cli"},
}
WITHOUT_TORCH = {"plan", "cost", "planner", "stores", "corpus", "tokens", "report"} | BASE
DOOR = "__init__.py"  # `import trivium`: it names what other files hold, and looks each up when it is asked for
READS_ENVIRONMENT = ("cli/", "comms/launch.py")
# Files whose `open`, read_text and read_bytes reach nothing that others wrote: what the kernel or this package
# provides, or what the same process wrote. All others read through untrusted.py: regular files only, of bounded size.
READS_OWN_FILES = (
    "untrusted.py",
    "corpus/",
    "certify/",
    "cost/",
    "comms/",
    "cli/machine.py",
    "cli/machine.py",
    "cli/launch.py",
    "planner/published_rows.py",
    "evaluation/bias/lexicons.py",
    "evaluation/tasks/definition.py",
    "serving/app.py",
    "serving/prompts.py",
    "training/observers/profile.py",
    "training/supervision/watchdog.py",
    "tokens/recipe.py",
)
PICKLERS = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal"}
FORBIDDEN_CALLS = {"eval", "exec", "torch.load", "yaml.load", "yaml.unsafe_load", "yaml.full_load"}
MUTATORS = {"append", "extend", "insert", "add", "update", "setdefault", "pop", "popitem", "clear", "remove"}
CONTAINERS = {"list", "dict", "set", "defaultdict", "Counter", "OrderedDict", "deque", "bytearray"}
BANNED_FILES = {"utils.py", "util.py", "common.py", "helpers.py", "misc.py"}
BANNED_NAMES = re.compile(
    r"Manager|Handler|Helper|^(mbs|gbs|nranks|mp_size|vpp|mpu|pp_rank|tp_rank|dp_rank|grad_accum)$"
)
MAX_FILE_LINES, MAX_FUNCTION_LINES, MAX_PARAMETERS = 600, 80, 8
DATA_TABLE = "# A table of data:"  # a file whose first lines say so may be longer
SHOWN_FRACTION = 0.9


class Module(NamedTuple):
    """One file: its path inside the package, its text, its tree and every node of that, by kind: rules ask often."""

    path: str
    text: str
    tree: ast.Module
    every: dict[type[ast.AST], list[ast.AST]]

    @property
    def package(self) -> str:
        return self.path.split("/")[0].removesuffix(".py")

    @property
    def dotted(self) -> str:
        return "trivium." + self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    def nodes(self, *kinds: type[ast.AST]) -> Iterator[ast.AST]:
        return chain.from_iterable(found for kind, found in self.every.items() if issubclass(kind, kinds))


def module(path: str, text: str) -> Module:
    tree, every = ast.parse(text), defaultdict(list)
    for node in ast.walk(tree):
        every[type(node)].append(node)
    return Module(path, text, tree, every)


@cache
def source() -> list[Module]:
    return [module(str(p.relative_to(ROOT)), p.read_text("utf-8")) for p in sorted(ROOT.rglob("*.py"))]


def called(node: ast.Attribute, *names: str) -> bool:
    """Whether it is written as one of these; its last word is asked for first, as the whole takes long to write."""
    return any(name.endswith(f".{node.attr}") for name in names) and ast.unparse(node) in names


def imports(m: Module) -> Iterator[tuple[ast.stmt, str]]:
    """Every imported name as a dotted path: `from a.b import c` gives a.b.c."""
    for node in m.nodes(ast.Import, ast.ImportFrom):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        else:
            yield from ((node, f"{'.' * node.level}{node.module or ''}.{a.name}") for a in node.names)


def import_rules(m: Module) -> Iterator[str]:
    top = {id(node) for node in m.tree.body}
    for node, name in imports(m):
        if name.startswith("."):
            yield f"{node.lineno} imports {name} relatively; write the absolute name"
        if name.split(".")[0] != "trivium" or name == "trivium":
            continue
        if id(node) not in top and m.package not in ("cli", "__main__") and m.path != DOOR:
            yield f"{node.lineno} imports {name} inside a function; move it to the top"
        if m.path == DOOR:
            continue  # for type checkers alone, and of any package; door_rules
        there = name.split(".")[1:]
        allowed = BASE | {m.package} | MAY_IMPORT.get(m.package, set())
        if m.package != "cli" and allowed.isdisjoint(".".join(there[:depth]) for depth in (1, 2, 3)):
            yield f"{node.lineno} {m.package} may not import {name}"


def door_rules(m: Module) -> Iterator[str]:
    if m.path != DOOR:
        return
    for_checkers = {
        id(node)
        for block in m.tree.body
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in block.body
    }
    for node, name in imports(m):
        if id(node) not in for_checkers and name.split(".")[0] not in sys.stdlib_module_names:
            yield f"{node.lineno} imports {name}; `import trivium` reads nothing: keep it under TYPE_CHECKING"


def torch_rules(m: Module) -> Iterator[str]:
    for node, name in imports(m):
        if name.split(".")[0] == "torch" and m.package in WITHOUT_TORCH:
            yield f"{node.lineno} {m.package} imports {name}; it must start without torch"
        if name.startswith("torch.distributed") and m.package != "comms":
            yield f"{node.lineno} imports {name}; only comms/ talks to torch.distributed"
    for node in m.nodes(ast.Attribute):
        if m.package != "comms" and called(node, "torch.distributed"):
            yield f"{node.lineno} uses torch.distributed; only comms/ may"


def environment_rules(m: Module) -> Iterator[str]:
    if m.path.startswith(READS_ENVIRONMENT):
        return
    for node, name in imports(m):
        if name in ("os.environ", "os.getenv"):
            yield f"{node.lineno} imports {name}; only comms/launch.py and cli/ read the environment"
    for node in m.nodes(ast.Attribute):
        if called(node, "os.environ", "os.getenv", "os.environb"):
            yield f"{node.lineno} reads the environment; only comms/launch.py and cli/ may"


def reading_rules(m: Module) -> Iterator[str]:
    if m.path.startswith(READS_OWN_FILES):
        return
    for node in m.nodes(ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
        on = node.func.value if isinstance(node.func, ast.Attribute) else None
        if name in ("read_text", "read_bytes") and on is not None and ast.unparse(on) != "untrusted":
            yield f"{node.lineno} calls {ast.unparse(node.func)}; read it through trivium.untrusted"
        mode = node.args[1] if name == "open" and on is None and len(node.args) > 1 else None
        if name == "open" and on is None and (mode is None or "r" in ast.unparse(mode)):
            yield f"{node.lineno} opens a file for reading; use trivium.untrusted.open_regular"


def printing_rules(m: Module) -> Iterator[str]:
    for node in m.nodes(ast.Call):
        if m.path.startswith("cli/show.py") or ast.unparse(node.func) not in ("print", "typer.echo", "echo"):
            continue
        if not all(isinstance(a, ast.Constant) or ast.unparse(a).startswith("plain(") for a in node.args):
            yield f"{node.lineno} prints what may hold a terminal's commands; use say, say_aside, warn or plain"


def state_rules(m: Module) -> Iterator[str]:
    for node in m.nodes(ast.Global):
        yield f"{node.lineno} mutates a module global ({', '.join(node.names)}); pass the value"
    held: set[str] = set()
    for node in m.tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None and _is_container(node.value):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for name in (t.id for t in targets if isinstance(t, ast.Name)):
                held.add(name)
                if not name.isupper() or _is_empty(node.value):
                    yield f"{node.lineno} {name} is module-level mutable state; make it a constant or pass it"
    for node in m.nodes(ast.Call, ast.Subscript):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=attr)) if attr in MUTATORS:
                changed = name
            case ast.Subscript(value=ast.Name(id=name), ctx=ast.Store() | ast.Del()):
                changed = name
            case _:
                continue
        if changed in held:
            yield f"{node.lineno} changes {changed}, a module-level constant"


def _is_container(value: ast.expr) -> bool:
    if isinstance(value, ast.Call):
        return ast.unparse(value.func).split(".")[-1] in CONTAINERS
    return isinstance(value, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp)


def _is_empty(value: ast.expr) -> bool:
    match value:
        case ast.List(elts=[]) | ast.Dict(keys=[]) | ast.Call(args=[], keywords=[]):
            return True
    return False


def size_rules(m: Module) -> Iterator[str]:
    lines = m.text.count("\n")
    if lines > MAX_FILE_LINES and DATA_TABLE not in "\n".join(m.text.splitlines()[:5]):
        yield f"1 the file has {lines} lines, more than {MAX_FILE_LINES}; split it"
    for node in m.nodes(ast.FunctionDef, ast.AsyncFunctionDef):
        length = (node.end_lineno or node.lineno) - node.lineno + 1
        if length > MAX_FUNCTION_LINES:
            yield f"{node.lineno} {node.name} has {length} lines, more than {MAX_FUNCTION_LINES}; split it"
        count = len(_parameters(node))
        if count > MAX_PARAMETERS:
            yield f"{node.lineno} {node.name} has {count} parameters, more than {MAX_PARAMETERS}; pass a config"


def annotation_rules(m: Module) -> Iterator[str]:
    for node in m.nodes(ast.FunctionDef, ast.AsyncFunctionDef):
        rest = [a for a in (node.args.vararg, node.args.kwarg) if a is not None]
        missing = [a.arg for a in (*_parameters(node), *rest) if a.annotation is None]
        missing += ["return"] if node.returns is None else []
        if missing:
            yield f"{node.lineno} {node.name} lacks annotations: {', '.join(missing)}"


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.arg]:
    every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return every[1:] if every and every[0].arg in ("self", "cls") else every


def message_rules(m: Module) -> Iterator[str]:
    for node in m.nodes(ast.Raise, ast.Assert):
        match node:
            case ast.Raise(exc=ast.Call(args=[], keywords=[])):
                yield f"{node.lineno} raises without a message"
            case ast.Raise(exc=ast.Name(id=name)) if name[0].isupper():
                yield f"{node.lineno} raises {name} without a message"
            case ast.Assert(msg=None):
                yield f"{node.lineno} asserts without a message"


def forbidden_rules(m: Module) -> Iterator[str]:
    for node, name in imports(m):
        if name.split(".")[0] in PICKLERS:
            yield f"{node.lineno} imports {name}; data is never code"
    for node in m.nodes(ast.Call):
        if ast.unparse(node.func) in FORBIDDEN_CALLS:
            yield f"{node.lineno} calls {ast.unparse(node.func)}; data is never code"
        if any(k.arg == "allow_pickle" and not _is_false(k.value) for k in node.keywords):
            yield f"{node.lineno} allows pickle; data is never code"


def _is_false(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is False


def name_rules(m: Module) -> Iterator[str]:
    if m.path.split("/")[-1] in BANNED_FILES:
        yield f"1 {m.path} has a name that says nothing; name what it does"
    for node in m.nodes(ast.FunctionDef, ast.ClassDef, ast.arg, ast.Name):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.arg(arg=name):
                names = [name]
            case ast.Name(id=name, ctx=ast.Store()):
                names = [name]
            case _:
                continue
        for banned in filter(BANNED_NAMES.search, names):
            yield f"{node.lineno} {banned} is not a word of docs/glossary.md"


def package_rules(m: Module) -> Iterator[str]:
    if not m.path.endswith("/__init__.py"):
        return
    if len(m.tree.body) != 1 or not ast.get_docstring(m.tree):
        yield "1 a package's __init__ holds only a docstring"


RULES = (
    import_rules,
    door_rules,
    torch_rules,
    environment_rules,
    reading_rules,
    printing_rules,
    state_rules,
    size_rules,
    annotation_rules,
    message_rules,
    forbidden_rules,
    name_rules,
    package_rules,
)


def findings(modules: list[Module], rules: tuple = RULES) -> list[str]:
    return [f"src/trivium/{m.path}:{found}" for m in modules for rule in rules for found in rule(m)]


def first_cycle(modules: list[Module]) -> list[str]:
    """A circle of imports between files, or nothing."""
    known = {m.dotted for m in modules}
    graph = {
        m.dotted: {
            there
            for _, name in imports(m)
            for there in (name, name.rpartition(".")[0])
            if there in known and there not in (m.dotted, "trivium")
        }
        for m in modules
    }
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def shown(modules: list[Module]) -> tuple[list[str], int]:
    """The raises of a new exception whose message shows no value, and how many raises there are."""
    silent, total = [], 0
    for m in modules:
        for node in m.nodes(ast.Raise):
            if isinstance(node.exc, ast.Call):
                total += 1
                parts = [n for a in (*node.exc.args, *(k.value for k in node.exc.keywords)) for n in ast.walk(a)]
                if not any(isinstance(n, ast.FormattedValue | ast.Name | ast.Attribute) for n in parts):
                    silent.append(f"src/trivium/{m.path}:{node.lineno} {ast.unparse(node)[:90]}")
    return silent, total


def test_the_source_keeps_every_rule():
    found = findings(source())
    assert not found, "\n" + "\n".join(found)


def test_import_graph_has_no_cycle():
    assert first_cycle(source()) == []


def test_nine_in_ten_errors_show_the_offending_value():
    silent, total = shown(source())
    assert len(silent) <= (1 - SHOWN_FRACTION) * total, "\n" + "\n".join(silent)


def test_every_package_has_an_import_rule():
    packages = {p.parent.name for p in ROOT.glob("*/__init__.py")}
    assert packages - {"cli"} <= MAY_IMPORT.keys(), f"no rule for {packages - MAY_IMPORT.keys()}"


BAD = [
    ("plan/a.py", "from trivium.cost.memory import x", "plan may not import"),
    ("tokens/a.py", "from trivium.corpus.read.warc import x", "tokens may not import"),
    ("tokens/a.py", "from trivium.plan.plan import Plan", "tokens may not import"),
    ("training/a.py", "from trivium.cost.memory import x", "training may not import"),
    ("report/a.py", "from trivium.plan.plan import Plan", "report may not import"),
    ("evaluation/a.py", "from trivium.cli import main", "evaluation may not import"),
    ("config.py", "from trivium.plan.plan import Plan", "config may not import"),
    ("__init__.py", "from trivium.plan.plan import Plan", "reads nothing"),
    ("__init__.py", "import numpy", "reads nothing"),
    ("plan/a.py", "from trivium import Plan", "plan may not import"),
    ("plan/a.py", "from .layout import Layout", "relatively"),
    ("plan/a.py", "def f() -> None:\n    from trivium.errors import ConfigError", "inside a function"),
    ("report/a.py", "def f() -> None:\n    import torch", "without torch"),
    ("corpus/a.py", "from torch import nn", "without torch"),
    ("model/a.py", "import torch.distributed as dist", "only comms/"),
    ("model/a.py", "from torch import distributed", "only comms/"),
    ("model/a.py", "import torch\ntorch.distributed.barrier()", "only comms/"),
    ("training/a.py", "import os\nos.environ['RANK']", "reads the environment"),
    ("training/a.py", "from pathlib import Path\nPath('x').read_text()", "through trivium.untrusted"),
    ("training/a.py", "print(f'{name}')", "use say, say_aside, warn or plain"),
    ("training/a.py", "open('x', 'rb')", "use trivium.untrusted.open_regular"),
    ("training/a.py", "from os import getenv", "read the environment"),
    ("plan/a.py", "def f() -> None:\n    global x\n    x = 1", "module global"),
    ("plan/a.py", "seen = [1]", "mutable state"),
    ("plan/a.py", "CACHE: dict[str, int] = {}", "mutable state"),
    ("plan/a.py", "from collections import Counter\nCOUNTS = Counter()", "mutable state"),
    ("plan/a.py", "TABLE = {1: 2}\ndef f() -> None:\n    TABLE[3] = 4", "changes TABLE"),
    ("plan/a.py", "TABLE = [1]\ndef f() -> None:\n    TABLE.append(4)", "changes TABLE"),
    ("plan/a.py", "x = 1\n" * 601, "601 lines"),
    ("plan/a.py", "def f() -> None:\n" + "    x = 1\n" * 80, "81 lines"),
    ("plan/a.py", f"def f({', '.join(f'a{i}: int' for i in range(9))}) -> None: ...", "9 parameters"),
    ("plan/a.py", "def f(a) -> None: ...", "lacks annotations: a"),
    ("plan/a.py", "def f(*a: int, **k): ...", "lacks annotations: k, return"),
    ("plan/a.py", "raise ValueError", "without a message"),
    ("plan/a.py", "raise ValueError()", "without a message"),
    ("plan/a.py", "assert 1", "asserts without a message"),
    ("plan/a.py", "import pickle", "data is never code"),
    ("model/a.py", "import torch\ntorch.load('x')", "calls torch.load"),
    ("plan/a.py", "eval('1')", "calls eval"),
    ("plan/a.py", "exec('1')", "calls exec"),
    ("plan/a.py", "import yaml\nyaml.load('1')", "calls yaml.load"),
    ("plan/a.py", "import numpy\nnumpy.load('x', allow_pickle=True)", "allows pickle"),
    ("plan/utils.py", "", "says nothing"),
    ("plan/a.py", "class RankManager: ...", "RankManager is not a word"),
    ("plan/a.py", "mbs = 3", "mbs is not a word"),
    ("plan/__init__.py", '"""Reads x.\n\nWrites y."""\nimport os', "only a docstring"),
]


@pytest.mark.parametrize(("path", "text", "expected"), BAD, ids=[f"{p}:{e}" for p, _, e in BAD])
def test_each_rule_rejects_a_violation(path: str, text: str, expected: str):
    found = findings([module(path, text)])
    assert len(found) == 1 and expected in found[0], found


GOOD = [
    (
        "__init__.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from trivium.model.whole import WholeModel",
    ),
    (
        "cli/a.py",
        "def f() -> None:\n    import os\n    from trivium.training.supervision.job import start\n    os.environ['X']",
    ),
    ("comms/launch.py", "import os\nimport torch.distributed\nrank = os.environ['RANK']"),
    ("plan/a.py", "class A:\n    def f(self, a: int) -> None:\n        raise ValueError(f'{a}')"),
    ("plan/a.py", "TABLE = {1: 2}\n\n\ndef f(x: list[int]) -> None:\n    x.append(TABLE[1])"),
    ("plan/a.py", "def f(error: ValueError) -> None:\n    raise error"),
    ("model/a.py", "from torch import nn\n\n\ndef f(m: nn.Module) -> None:\n    m.eval()"),
    ("plan/__init__.py", '"""Reads a.\n\nWrites b: c."""'),
    ("training/a.py", "from trivium.untrusted import read_text\nread_text('x')\nopen('x', 'wb')"),
]


@pytest.mark.parametrize(("path", "text"), GOOD)
def test_rules_accept_valid_code(path: str, text: str):
    assert findings([module(path, text)]) == []


def test_import_cycle_is_detected():
    a = module("plan/a.py", "from trivium.plan.b import x")
    b = module("plan/b.py", "from trivium.plan import a")
    assert set(first_cycle([a, b])) == {"trivium.plan.a", "trivium.plan.b"}


def test_error_without_value_is_detected():
    m = module("plan/a.py", "raise ValueError('bad')\nraise ValueError(f'bad {x}')\nraise ValueError(x)")
    assert shown([m]) == (["src/trivium/plan/a.py:1 raise ValueError('bad')"], 3)
