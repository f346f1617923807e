"""What does `evalfleet.toml` say: what the harness is, how it is run, who judges, which platform it may be sent to?

The file stands at the tree's root and holds no secret, only names of environment variables. Without it everything has
its default and there is no harness to run. Unknown keys and wrong types are refused with `file:line:column`, all at
once; `KEYS` is the whole list of what may be written and `docs/configuration.md` explains each.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

from evalfleet.checks.near import folded
from evalfleet.checks.place import Place
from evalfleet.credentials import DEFAULT, is_ours, is_profile
from evalfleet.errors import ConfigError
from evalfleet.quarantine import Quarantine
from evalfleet.tomlfields import ENV_NAME, Fields, Problems, looks_like_secret, shown
from evalfleet.tomlplaces import read_toml

CONFIG_FILE = "evalfleet.toml"
MAX_CONCURRENCY = 100_000

# Every table and its keys, as they may be written (a test holds docs/configuration.md against it).
KEYS: Mapping[str, tuple[str, ...]] = {
    "eval": ("suite", "concurrency", "results"),
    "harness": ("name", "files", "infra_codes", "pin_env", "command", "http", "openai"),
    "harness.command": ("argv", "env", "cwd"),
    "harness.http": ("url", "headers_env"),
    "harness.openai": ("base_url", "model", "api_key_env", "price"),
    "harness.openai.price": ("input", "output", "currency"),
    "graders": ("python", "files", "env", "network", "memory"),
    "judge": ("base_url", "model", "api_key_env", "price"),
    "judge.price": ("input", "output", "currency"),
    "target": ("base_url", "harness_id", "machine_id", "profile"),
    "quarantine": ("scenario", "reason", "until", "suite"),
}
TABLES = ("eval", "harness", "graders", "judge", "target", "quarantine")
DRIVERS = ("command", "http", "openai")


@dataclass(frozen=True, slots=True)
class Price:
    """What a million tokens cost, in `currency` (three capital letters)."""

    input: Decimal
    output: Decimal
    currency: str = "USD"


@dataclass(frozen=True, slots=True)
class CommandHarness:
    """A program for each turn. `env` is added to the caller's environment; `cwd` "tree" is the tree's root, "scratch"
    a fresh copy of the tree for each conversation."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: Literal["tree", "scratch"] = "tree"


@dataclass(frozen=True, slots=True)
class HttpHarness:
    """A service that is POSTed each turn. `headers_env`: header name → environment variable that holds its value."""

    url: str
    headers_env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OpenAIHarness:
    """An OpenAI-compatible chat endpoint; `base_url` is the address before `/chat/completions`."""

    base_url: str
    model: str
    api_key_env: str | None = None
    price: Price | None = None


@dataclass(frozen=True, slots=True)
class HarnessConfig:
    """The agent under test. `files` None: the default rule for harness files (S33)."""

    name: str
    driver: CommandHarness | HttpHarness | OpenAIHarness | None = None
    files: tuple[str, ...] | None = None
    infra_codes: tuple[str, ...] = ()
    pin_env: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GradersConfig:
    """What grader processes may see and use (S28). `memory_mb` in MiB; `env` holds names."""

    python: str | None = None
    files: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    network: bool = False
    memory_mb: int = 1024


@dataclass(frozen=True, slots=True)
class JudgeConfig:
    """What `t.llm` calls on the embedded server: an OpenAI-compatible endpoint."""

    base_url: str
    model: str
    api_key_env: str | None = None
    price: Price | None = None


@dataclass(frozen=True, slots=True)
class TargetConfig:
    """A platform that speaks the v2 API (S40). `base_url` None: the environment's for `profile` fills in, which also
    names the key there (`evalfleet.credentials`)."""

    base_url: str | None
    harness_id: str
    machine_id: str | None = None
    profile: str = DEFAULT


@dataclass(frozen=True, slots=True)
class EvalConfig:
    """`results` is a folder, relative to the tree's root unless absolute; `concurrency` None: the default, 8 (S40)."""

    suite: str = "checks"
    concurrency: int | None = None
    results: str = "evals/results"


@dataclass(frozen=True, slots=True)
class TreeConfig:
    root: Path
    eval: EvalConfig = field(default_factory=EvalConfig)
    harness: HarnessConfig | None = None
    graders: GradersConfig = field(default_factory=GradersConfig)
    judge: JudgeConfig | None = None
    target: TargetConfig | None = None
    quarantine: tuple[Quarantine, ...] = ()

    @property
    def results_folder(self) -> Path:
        return self.root / self.eval.results

    @property
    def driver_name(self) -> str | None:
        """`command`, `http` or `openai`: the table that says how the harness is run."""
        driver = None if self.harness is None else self.harness.driver
        names = {CommandHarness: "command", HttpHarness: "http", OpenAIHarness: "openai"}
        return None if driver is None else names[type(driver)]


def read_tree_config(root: Path) -> TreeConfig:
    """`evalfleet.toml` of a tree. ConfigError with every problem and its place; defaults where there is no file."""
    path = root / CONFIG_FILE
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        if path.is_symlink():  # its defaults would be those of another harness
            raise ConfigError(CONFIG_FILE, f"is a link that leads nowhere, to {path.readlink()}") from None
        return TreeConfig(root=root)
    except OSError as error:
        raise ConfigError(CONFIG_FILE, f"cannot be read: {error.strerror or error}") from error
    return parse_tree_config(data, root=root)


def parse_tree_config(data: bytes, *, root: Path, file: str = CONFIG_FILE) -> TreeConfig:
    """The same from bytes; `file` is what error messages call it."""
    document = read_toml(data, file)
    problems = Problems(document)
    top = Fields(problems, (), document.values, TABLES)
    config = TreeConfig(
        root=root,
        eval=_eval(top.table("eval", KEYS["eval"])),
        harness=_harness(top.table("harness", KEYS["harness"]), default_name=root.name or "harness"),
        graders=_graders(top.table("graders", KEYS["graders"])),
        judge=_judge(top.table("judge", KEYS["judge"])),
        target=_target(top.table("target", KEYS["target"])),
        quarantine=_quarantine(top.tables("quarantine", KEYS["quarantine"])),
    )
    problems.raise_if_any()
    return config


def _eval(fields: Fields | None) -> EvalConfig:
    if fields is None:
        return EvalConfig()
    suite = fields.text("suite") or "checks"
    if len(suite) > 150 or suite != suite.strip():
        fields.problem("suite", "suite must be at most 150 characters without blanks around it")
    results = fields.text("results") or "evals/results"
    if not Path(results).is_absolute() and Path(results).parts in (
        (),
        ("evals",),
        ("evals", "cases"),
        ("evals", "graders"),
    ):
        fields.problem("results", f"results must be a folder of its own, not {results!r}")
    return EvalConfig(suite=suite, concurrency=fields.whole("concurrency", 1, MAX_CONCURRENCY), results=results)


def _harness(fields: Fields | None, *, default_name: str) -> HarnessConfig | None:
    if fields is None:
        return None
    stated = [name for name in DRIVERS if fields.has(name)]
    if len(stated) > 1:
        named = " and ".join(f"[harness.{name}]" for name in stated)
        fields.problem(stated[1], f"a harness is run in one way: {named} both stand here; keep one")
    drivers: list[CommandHarness | HttpHarness | OpenAIHarness | None] = [
        _command(fields.table("command", KEYS["harness.command"])),
        _http(fields.table("http", KEYS["harness.http"])),
        _openai(fields.table("openai", KEYS["harness.openai"])),
    ]
    files = fields.texts("files")
    _globs(fields, files or ())
    if files == ():
        fields.problem(
            "files", "files is empty: a harness without files cannot be pinned; leave the key out for the default"
        )
    return HarnessConfig(
        name=fields.text("name") or default_name,
        driver=next((driver for driver in drivers if driver is not None), None),
        files=files,
        infra_codes=fields.texts("infra_codes") or (),
        pin_env=fields.env_names("pin_env"),
    )


def _globs(fields: Fields, globs: tuple[str, ...]) -> None:
    for index, glob in enumerate(globs):
        if glob.startswith("/") or ".." in glob.split("/") or "\\" in glob:
            fields.problem(("files", index), f"{glob!r} must be a glob below the tree's root, with / between folders")


def _command(fields: Fields | None) -> CommandHarness | None:
    if fields is None:
        return None
    fields.required("argv")
    if fields.has("argv") and isinstance(fields.values["argv"], str):
        fields.problem(
            "argv", 'argv must be an array such as ["python3", "agent.py"], not one text: no shell is in between'
        )
        argv: tuple[str, ...] = ()
    else:
        argv = fields.texts("argv") or ()
        if fields.values.get("argv") == []:
            fields.problem("argv", "argv is empty: name the program that plays a turn")
    env = fields.mapping("env")
    for name, value in env.items():
        if not ENV_NAME.match(name):
            fields.problem(("env", name), f"{name!r} is no name of an environment variable")
        elif looks_like_secret(value):
            fields.problem(
                ("env", name),
                f"the value of {name} looks like a secret: set {name} in the environment, which agents inherit",
            )
    cwd = fields.choice("cwd", ("tree", "scratch"), "tree")
    return CommandHarness(argv=argv, env=env, cwd="scratch" if cwd == "scratch" else "tree")


def _http(fields: Fields | None) -> HttpHarness | None:
    if fields is None:
        return None
    fields.required("url")
    headers = fields.mapping("headers_env")
    for header, name in headers.items():
        if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", header):
            fields.problem(("headers_env", header), f"{header!r} is no name of an HTTP header")
        if not ENV_NAME.match(name) or looks_like_secret(name):
            fields.problem(
                ("headers_env", header),
                f"{header} must name the environment variable that holds its value, never the value itself",
            )
    return HttpHarness(url=_address(fields, "url"), headers_env=headers)


def _address(fields: Fields, key: str) -> str:
    return fields.url(key) or ""


def _openai(fields: Fields | None) -> OpenAIHarness | None:
    if fields is None:
        return None
    fields.required("base_url", "model")
    return OpenAIHarness(
        base_url=_address(fields, "base_url"),
        model=fields.text("model") or "",
        api_key_env=fields.env_name("api_key_env"),
        price=_price(fields.table("price", KEYS["harness.openai.price"])),
    )


def _price(fields: Fields | None) -> Price | None:
    if fields is None:
        return None
    fields.required("input", "output")
    currency = fields.text("currency") or "USD"
    if not re.fullmatch(r"[A-Z]{3}", currency):
        fields.problem("currency", f"currency must be three capital letters such as USD, not {currency!r}")
    return Price(fields.money("input") or Decimal(0), fields.money("output") or Decimal(0), currency)


def _graders(fields: Fields | None) -> GradersConfig:
    if fields is None:
        return GradersConfig()
    files = fields.texts("files") or ()
    _globs(fields, files)
    return GradersConfig(
        python=fields.text("python"),
        files=files,
        env=_passed_on(fields),
        network=fields.flag("network", False),
        memory_mb=_memory(fields),
    )


def _memory(fields: Fields) -> int:
    """MiB, from a whole number of MiB or a text such as "512MiB" or "2GiB"."""
    value: Any = fields.values.get("memory", 1024)
    factor = 1
    found = re.fullmatch(r"([0-9]{1,6})\s*(MiB|GiB)", value) if isinstance(value, str) else None
    if found is not None:
        value, factor = int(found[1]), 1024 if found[2] == "GiB" else 1
    if isinstance(value, bool) or not isinstance(value, int) or not 64 <= value * factor <= 1_048_576:
        fields.problem(
            "memory", 'memory must be a whole number of MiB or a text such as "512MiB" or "2GiB", from 64 MiB to 1 TiB'
        )
        return 1024
    return value * factor


def _judge(fields: Fields | None) -> JudgeConfig | None:
    if fields is None:
        return None
    fields.required("base_url", "model")
    return JudgeConfig(
        base_url=_address(fields, "base_url"),
        model=fields.text("model") or "",
        api_key_env=fields.env_name("api_key_env"),
        price=_price(fields.table("price", KEYS["judge.price"])),
    )


def _passed_on(fields: Fields) -> tuple[str, ...]:
    names = fields.env_names("env")
    for name in names:
        if is_ours(name):
            fields.problem("env", f"{name} is evalfleet's own: no grader sees it, and t.llm needs no key")
    return names


def _target(fields: Fields | None) -> TargetConfig | None:
    if fields is None:
        return None
    fields.required("harness_id")
    return TargetConfig(
        base_url=fields.url("base_url"),
        harness_id=fields.text("harness_id") or "",
        machine_id=fields.text("machine_id"),
        profile=_profile(fields),
    )


def _profile(fields: Fields) -> str:
    name = fields.text("profile")
    if name is not None and not is_profile(name):
        fields.problem("profile", f"{shown(name)} names no profile: write lower-case letters, digits and `-`")
    return name or DEFAULT


def _quarantine(tables: list[Fields]) -> tuple[Quarantine, ...]:
    """Whether each names a scenario of the tree is for whoever reads the cases (`scheduler.validate`)."""
    found: dict[str, Quarantine] = {}
    for fields in tables:
        fields.required("scenario", "reason", "until")
        scenario, reason, until = fields.text("scenario"), fields.text("reason"), fields.day("until")
        if scenario is None or reason is None or until is None:
            continue
        suite = fields.text("suite")
        key = f"{suite or ''}\0{folded(scenario)}"
        if key in found:
            fields.problem("scenario", f"{scenario!r} is in quarantine twice; keep one")
            continue
        spot = fields.problems.document.spot((*fields.path, "scenario"))
        found[key] = Quarantine(scenario, reason, until, Place(fields.problems.document.file, *spot), suite)
    return tuple(found.values())
