"""evalfleet.toml, the tree's place, its harness files and its commit (S33)."""

from __future__ import annotations

import os
import shutil
import subprocess
from decimal import Decimal
from pathlib import Path

import pytest

from evalfleet.errors import ConfigError, UsageError
from evalfleet.globs import glob_pattern, reaches_into
from evalfleet.tree import (
    KEYS,
    CommandHarness,
    EvalConfig,
    GradersConfig,
    HarnessConfig,
    HttpHarness,
    JudgeConfig,
    OpenAIHarness,
    Price,
    TargetConfig,
    TreeConfig,
    find_tree,
    harness_files,
    parse_tree_config,
    read_tree_config,
    read_tree_version,
    tree_commit,
)

WHOLE = """\
[eval]
suite = "nightly"
concurrency = 20
results = "out/results"
[harness]
name = "concierge"
files = ["agent/**"]
infra_codes = ["proxy_down"]
pin_env = ["MODEL"]
[harness.command]
argv = ["python3", "agent.py"]
env = { MODE = "test" }
cwd = "scratch"
[graders]
python = ".venv/bin/python"
files = ["data/*.json"]
env = ["LANG"]
network = true
memory = "2GiB"
[judge]
base_url = "https://judge.example/v1/"
model = "m"
api_key_env = "JUDGE_KEY"
price = { input = 0.15, output = "0.60", currency = "EUR" }
[target]
base_url = "https://platform.example/api"
harness_id = "h_1"
machine_id = "m_1"
profile = "staging"
"""


def parse(text: str) -> TreeConfig:
    return parse_tree_config(text.encode(), root=Path("/trees/concierge"))


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    return str(caught.value)


def test_every_key_of_the_file_is_read() -> None:
    assert parse(WHOLE) == TreeConfig(
        root=Path("/trees/concierge"),
        eval=EvalConfig("nightly", 20, "out/results"),
        harness=HarnessConfig(
            name="concierge",
            driver=CommandHarness(("python3", "agent.py"), {"MODE": "test"}, "scratch"),
            files=("agent/**",),
            infra_codes=("proxy_down",),
            pin_env=("MODEL",),
        ),
        graders=GradersConfig(".venv/bin/python", ("data/*.json",), ("LANG",), True, 2048),
        judge=JudgeConfig("https://judge.example/v1", "m", "JUDGE_KEY", Price(Decimal("0.15"), Decimal("0.60"), "EUR")),
        target=TargetConfig("https://platform.example/api", "h_1", "m_1", "staging"),
    )


def test_http_and_openai_harnesses_are_read() -> None:
    http = parse('[harness.http]\nurl = "http://127.0.0.1:9/turn"\nheaders_env = { Authorization = "AGENT_AUTH" }\n')
    assert http.harness is not None
    assert http.harness.driver == HttpHarness("http://127.0.0.1:9/turn", {"Authorization": "AGENT_AUTH"})
    assert http.driver_name == "http"
    openai = parse(
        '[harness.openai]\nbase_url = "http://h/v1"\nmodel = "m"\n[harness.openai.price]\ninput=1\noutput=2\n'
    )
    assert openai.harness is not None
    assert openai.harness.driver == OpenAIHarness("http://h/v1", "m", None, Price(Decimal(1), Decimal(2)))


def test_without_a_file_everything_has_its_default(tmp_path: Path) -> None:
    config = read_tree_config(tmp_path)
    assert config == TreeConfig(root=tmp_path)
    assert (config.harness, config.eval.suite, config.eval.results) == (None, "checks", "evals/results")


def test_the_harness_is_named_after_its_folder_unless_it_says() -> None:
    config = parse('[harness.command]\nargv = ["x"]\n')
    assert config.harness is not None
    assert config.harness.name == "concierge"


REFUSED = [
    pytest.param("[harness]\nnam = 'x'\n", "evalfleet.toml:2:1: unknown key 'nam'", "did you mean 'name'", id="key"),
    pytest.param("[evals]\n", "evalfleet.toml:1:2: unknown table 'evals'", "did you mean 'eval'", id="table"),
    pytest.param("suite = 'x'\n", "evalfleet.toml:1:1: unknown key 'suite'", "", id="a key above all tables"),
    pytest.param("[eval]\nconcurrency = 0\n", ":2:1: concurrency must be", "from 1 to 100000, not 0", id="B18 zero"),
    pytest.param("[eval]\nconcurrency = -1\n", ":2:1: concurrency must be", "not -1", id="B18 minus one"),
    pytest.param("[eval]\nconcurrency = 'abc'\n", ":2:1: concurrency must be", "not 'abc'", id="B18 abc"),
    pytest.param("[eval]\nconcurrency = true\n", ":2:1: concurrency must be", "not true", id="true is no number"),
    pytest.param("[eval]\nconcurrency = 4.0\n", ":2:1: concurrency must be", "4.0", id="a fraction"),
    pytest.param("[eval]\nconcurrency = 100001\n", ":2:1: concurrency must be", "100001", id="too many"),
    pytest.param("eval = 3\n", ":1:1: eval must be a table", "a number 3", id="no table"),
    pytest.param("[[eval]]\n", ":1:3: eval must be a table, not an array\n", "", id="an array of tables"),
    pytest.param("[eval]\nsuite = ''\n", ":2:1: suite must be one line of text", "", id="empty text"),
    pytest.param("[eval]\nresults = 'evals/cases'\n", ":2:1: results must be a folder of its own", "", id="results"),
    pytest.param("[harness.command]\n", ":1:10: [harness.command] needs argv", "", id="no argv"),
    pytest.param("[harness.command]\nargv = []\n", ":2:1: argv is empty", "", id="empty argv"),
    pytest.param(
        "[harness.command]\nargv = 'python3 a.py'\n", ":2:1: argv must be an array", "no shell", id="one text"
    ),
    pytest.param(
        "[harness.command]\nargv = ['a',\n  3]\n", ":3:3: argv holds texts only, not 3", "", id="a number in argv"
    ),
    pytest.param(
        "[harness.command]\nargv=['a']\ncwd='tre'\n", ":3:1: cwd must be 'tree' or 'scratch'", "'tree'?", id="cwd"
    ),
    pytest.param("[harness.command]\nargv=['a']\nenv={A=1}\n", ":3:6: A must be text in quotes", "", id="env number"),
    pytest.param("[harness.command]\nargv=['a']\nenv={'A B'='1'}\n", ":3:6: 'A B' is no name", "", id="env name"),
    pytest.param("[harness]\nfiles = []\n", ":2:1: files is empty", "", id="no files"),
    pytest.param("[harness]\nfiles = ['../x']\n", ":2:10: '../x' must be a glob below", "", id="outside"),
    pytest.param("[harness]\nfiles = ['/etc/*']\n", ":2:10: '/etc/*' must be a glob below", "", id="absolute"),
    pytest.param("[harness]\npin_env = ['A=1']\n", ":2:12: 'A=1' is no name", "", id="pin_env"),
    pytest.param("[harness.http]\nurl='ftp://x'\n", ":2:1: url must be an http:// or https:// address", "", id="ftp"),
    pytest.param(
        "[harness.http]\nurl='http://'\n", ":2:1: url must be an http:// or https:// address", "", id="no host"
    ),
    pytest.param("[harness.http]\nurl='http://h:x/'\n", ":2:1: url is no valid address", "", id="port"),
    pytest.param("[judge]\nmodel='m'\n", ":1:2: [judge] needs base_url", "", id="judge without an address"),
    pytest.param("[target]\n", ":1:2: [target] needs harness_id", "", id="target without a harness"),
    pytest.param("[graders]\nmemory='2 pounds'\n", ":2:1: memory must be", "512MiB", id="memory"),
    pytest.param("[graders]\nnetwork='yes'\n", ":2:1: network must be true or false", "", id="network"),
    pytest.param("[graders]\nenv=['A']\npython=3\n", ":3:1: python must be text in quotes", "", id="python"),
    pytest.param(
        "[judge]\nbase_url='http://h'\nmodel='m'\nprice={input=-1,output=nan}\n",
        ":4:8: input must be",
        "not -1",
        id="price",
    ),
    pytest.param(
        "[judge]\nbase_url='http://h'\nmodel='m'\nprice={input=1}\n",
        ":4:1: [judge.price] needs output",
        "",
        id="half a price",
    ),
    pytest.param(
        "[judge]\nbase_url='http://h'\nmodel='m'\nprice={input=1,output=1,currency='usd'}\n",
        ":4:25: currency must be",
        "",
        id="currency",
    ),
    pytest.param(
        "[harness.command]\nargv=['a']\n[harness.http]\nurl='http://h'\n",
        ":3:10: a harness is run in one way",
        "",
        id="two drivers",
    ),
]


@pytest.mark.parametrize(("text", "place", "also"), REFUSED)
def test_what_is_wrong_is_refused_with_its_place(text: str, place: str, also: str) -> None:
    said = refusal(text)
    assert place in said
    assert also in said


def test_all_problems_come_at_once_and_in_file_order() -> None:
    said = refusal("[judge]\nmodle = 'm'\n[eval]\nconcurrency = 0\n[harness]\nfoo = 1\n")
    places = [line.split(": ")[0] for line in said.splitlines() if line.startswith("evalfleet.toml:")]
    assert places == [
        "evalfleet.toml:1:2",
        "evalfleet.toml:1:2",
        "evalfleet.toml:2:1",
        "evalfleet.toml:4:1",
        "evalfleet.toml:6:1",
    ]


def test_a_problem_shows_its_line_with_a_caret() -> None:
    assert refusal("[eval]\nsuite = 'a' # ok\nconcurency = 3\n").endswith("  | concurency = 3\n  | ^")


SYNTAX = [
    pytest.param(b"[eval]\nsuite =\n", "evalfleet.toml:2:8: not TOML", id="no value"),
    pytest.param(b"[eval]\nsuite = 'a'\nsuite = 'b'\n", "not TOML: Cannot overwrite a value", id="a key twice"),
    pytest.param(b"[eval]\n[eval]\n", "evalfleet.toml:2:6: not TOML: Cannot declare", id="a table twice"),
    pytest.param(b'[eval]\nsuite = "abc\n', "evalfleet.toml:2:", id="an open text"),
    pytest.param(b"a = [1,\n2", "evalfleet.toml:2:2: not TOML", id="the end comes too early"),
    pytest.param(b"[eval]\nsuite = 'caf\xe9'\n", "evalfleet.toml:2:13: byte 0xe9 is not UTF-8", id="latin-1"),
    pytest.param(b"a = " + b"[" * 5000 + b"]" * 5000, "nested too deeply", id="depth"),
    pytest.param(b"a" + b".a" * 20_000 + b" = 1", "nested too deeply", id="depth by dots"),
    pytest.param(b"#" * 1_000_001, "more than 1000000", id="size"),
]


@pytest.mark.parametrize(("data", "wanted"), SYNTAX)
def test_what_is_not_toml_is_refused_with_its_place(data: bytes, wanted: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_tree_config(data, root=Path("/t"))
    assert wanted in str(caught.value)


@pytest.mark.parametrize("name", ["Staging", "acme_eu", "a b", ""])
def test_a_profile_has_one_spelling(name: str) -> None:
    said = refusal(f'[target]\nharness_id = "h"\nprofile = "{name}"\n')
    assert "evalfleet.toml:3:1: " in said
    assert "profile" in said


@pytest.mark.parametrize("name", ["EVALFLEET_TOKEN", "SPLOX_API_KEY", "SPLOX_API_KEY_STAGING"])
def test_graders_are_passed_no_credential_of_ours(name: str) -> None:
    said = refusal(f'[graders]\nenv = ["LANG", "{name}"]\n')
    assert f"{name} is evalfleet's own: no grader sees it" in said


SECRETS = [
    pytest.param('[judge]\nbase_url="http://h"\nmodel="m"\napi_key = "{}"\n', "write api_key_env", id="api_key"),
    pytest.param(
        '[judge]\nbase_url="http://h"\nmodel="m"\napi_key_env = "{}"\n', "the name of an environment", id="in _env"
    ),
    pytest.param('[harness.command]\nargv=["a"]\nenv = {{ OPENAI_API_KEY = "{}" }}\n', "looks like a secret", id="env"),
    pytest.param(
        '[harness.http]\nurl="http://h"\nheaders_env = {{ A = "{}" }}\n', "must name the environment", id="header"
    ),
    pytest.param('[harness.http]\nurl="http://me:{}@h/"\n', "must not hold credentials", id="url"),
    pytest.param('[eval]\nconcurrency = "{}"\n', "concurrency must be", id="elsewhere"),
    pytest.param('[target]\nharness_id="h"\ntoken = "{}"\n', "unknown key 'token'", id="target"),
]


@pytest.mark.parametrize(("text", "wanted"), SECRETS)
def test_a_secret_in_the_file_is_refused_and_not_shown(text: str, wanted: str) -> None:
    secret = "sk-proj-0123456789abcdefghij"
    said = refusal(text.format(secret))
    assert wanted in said
    assert secret not in said


def test_byte_order_mark_and_crlf_are_accepted() -> None:
    config = parse_tree_config(b"\xef\xbb\xbf[eval]\r\nsuite = 'a'\r\n", root=Path("/t"))
    assert config.eval.suite == "a"


def test_an_unreadable_file_is_a_configuration_error(tmp_path: Path) -> None:
    (tmp_path / "evalfleet.toml").mkdir()
    with pytest.raises(ConfigError, match=r"evalfleet\.toml: cannot be read"):
        read_tree_config(tmp_path)


@pytest.mark.parametrize("start", [".", "evals/cases", "src/deep"])
def test_the_tree_is_the_nearest_folder_with_evals_or_a_settings_file(tmp_path: Path, start: str) -> None:
    for folder in ("evals/cases", "src/deep"):
        (tmp_path / folder).mkdir(parents=True)
    assert find_tree(tmp_path / start) == tmp_path.resolve()
    (tmp_path / "src" / "evalfleet.toml").touch()
    assert find_tree(tmp_path / "src" / "deep") == (tmp_path / "src").resolve()


def test_no_tree_is_a_usage_error_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="evalfleet init"):
        find_tree(tmp_path)
    with pytest.raises(UsageError, match="does not exist"):
        find_tree(tmp_path / "nowhere")


GLOBS = [
    ("agent.py", ["agent.py"], ["x/agent.py", "agent.pyc"]),
    ("*.py", ["a.py", ".py"], ["x/a.py"]),
    ("**/*.py", ["a.py", "x/y/a.py"], ["a.pyc"]),
    ("src/**", ["src/a", "src/x/y"], ["src2/a", "src"]),
    ("src", ["src", "src/a", "src/x/y"], ["src2"]),
    ("a/**/b", ["a/b", "a/x/y/b"], ["ab", "a/xb"]),
    ("[ab]?.t", ["a1.t", "b2.t"], ["c1.t", "a.t"]),
    ("[!a].t", ["b.t"], ["a.t", "/.t"]),
    ("a[.t", ["a[.t"], ["a.t"]),
    ("x.y+(z)", ["x.y+(z)"], ["xxy+(z)"]),
]


@pytest.mark.parametrize(("glob", "yes", "no"), GLOBS, ids=[glob for glob, _, _ in GLOBS])
def test_globs_mean_the_same_everywhere(glob: str, yes: list[str], no: list[str]) -> None:
    pattern = glob_pattern(glob)
    assert [path for path in yes if not pattern.match(path)] == []
    assert [path for path in no if pattern.match(path)] == []
    folders = [str(folder) for path in yes for folder in Path(path).parents if folder != Path()]
    assert [folder for folder in folders if not reaches_into(glob, folder)] == []


def test_a_walk_need_not_enter_what_a_globs_first_names_rule_out() -> None:
    wanted = [folder for folder in ("data", "data/deep", "src", "data2") if reaches_into("data/*.json", folder)]
    assert wanted == ["data", "data/deep"]
    assert reaches_into("./a/b/", "a")
    assert not reaches_into("./a/b/", "a/c")


def git(root: Path, *words: str) -> str:
    flags = ["-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false"]
    flags += ["-c", "init.defaultBranch=main", "-c", "protocol.file.allow=always"]
    done = subprocess.run(["git", *flags, *words], cwd=root, check=True, capture_output=True, text=True, timeout=60)
    return done.stdout.strip()


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A committed tree with all that never counts beside it. The user's own git settings are out of the way."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    root = tmp_path / "tree"
    files = {
        "evalfleet.toml": '[harness.command]\nargv = ["python3", "agent.py", "--config=conf.json"]\n',
        "agent.py": "print(1)\n",
        "conf.json": "{}\n",
        "data.txt": "tracked data\n",
        ".gitignore": "ignored.py\n.evalfleet/\n",
        "evals/cases/tone.yaml": "scenarios: []\n",
        "lib/deep/tool.py": "x = 1\n",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    git(tmp_path, "init", "-q", "tree")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "first")
    return root


def commit_of(root: Path) -> str:
    return tree_commit(read_tree_config(root))


def test_a_clean_tree_is_git_head(tree: Path) -> None:
    version = read_tree_version(read_tree_config(tree))
    assert version.commit == git(tree, "rev-parse", "HEAD") == version.head
    assert version.reason == ""
    assert harness_files(read_tree_config(tree)) == [
        ".gitignore",
        "agent.py",
        "conf.json",
        "data.txt",
        "evalfleet.toml",
        "lib/deep/tool.py",
    ]


NOT_HARNESS = [
    "evals/cases/tone.yaml",
    "evals/graders/new.py",
    "evals/results/x/suite.json",
    ".evalfleet/state.py",
    ".venv/lib/a.py",
    "node_modules/a.js",
    "lib/__pycache__/a.py",
    "agent.log",
    "agent.log.1",
    "calls.db",
    "calls.sqlite3-wal",
    "count.txt",
    "state.json",
    "ignored.py",
    "own/.gitignore",
]


@pytest.mark.parametrize("name", NOT_HARNESS)
@pytest.mark.parametrize("with_git", [True, False], ids=["git", "no git"])
def test_what_is_no_harness_file_does_not_move_the_commit(tree: Path, name: str, with_git: bool) -> None:
    if not with_git:
        shutil.rmtree(tree / ".git")
        (tree / "ignored.py").write_text("without git nothing is ignored\n")
    before = commit_of(tree)
    place = tree / name
    place.parent.mkdir(parents=True, exist_ok=True)
    if name == "own/.gitignore":
        place.write_text("*\n")
        (tree / "own" / "made.py").write_text("a folder that ignores itself\n")
    elif name != "ignored.py" or with_git:
        place.write_text("something else\n")
    assert commit_of(tree) == before


CHANGES = ["agent.py", "conf.json", "data.txt", "lib/deep/tool.py", "evalfleet.toml", "new.py", "prompts/system.md"]


@pytest.mark.parametrize("name", CHANGES)
def test_a_harness_file_that_differs_from_head_makes_a_digest(tree: Path, name: str) -> None:
    head = git(tree, "rev-parse", "HEAD")
    (tree / name).parent.mkdir(exist_ok=True)
    text = (tree / name).read_text() if (tree / name).exists() else ""
    (tree / name).write_text(text + "# changed\n")
    version = read_tree_version(read_tree_config(tree))
    assert version.commit != head
    assert len(version.commit) == 40
    assert set(version.commit) <= set("0123456789abcdef")
    assert list(version.changed) == [name]
    assert version.reason.startswith(name)
    assert commit_of(tree) == version.commit
    if text:
        (tree / name).write_text(text)
        assert commit_of(tree) == head


def test_a_staged_change_counts_as_a_change(tree: Path) -> None:
    (tree / "agent.py").write_text("print(2)\n")
    unstaged = commit_of(tree)
    git(tree, "add", "agent.py")
    assert commit_of(tree) == unstaged != git(tree, "rev-parse", "HEAD")


def test_a_file_that_is_gone_is_a_change(tree: Path) -> None:
    (tree / "lib/deep/tool.py").unlink()
    version = read_tree_version(read_tree_config(tree))
    assert version.changed == {"lib/deep/tool.py": ""}
    assert "is gone since git HEAD" in version.reason
    assert version.commit != version.head


@pytest.mark.parametrize("flag", ["--assume-unchanged", "--skip-worktree"])
def test_a_change_that_the_index_hides_is_seen(tree: Path, flag: str) -> None:
    git(tree, "update-index", flag, "agent.py")
    assert commit_of(tree) == git(tree, "rev-parse", "HEAD")
    (tree / "agent.py").write_text("print('hidden')\n")
    assert commit_of(tree) != git(tree, "rev-parse", "HEAD")


def test_a_file_that_becomes_a_program_is_a_change(tree: Path) -> None:
    (tree / "agent.py").chmod(0o755)
    assert commit_of(tree) != git(tree, "rev-parse", "HEAD")


def test_the_file_that_argv_names_counts_even_when_git_ignores_it(tree: Path) -> None:
    (tree / "evalfleet.toml").write_text('[harness.command]\nargv = ["./ignored.py"]\n')
    (tree / "ignored.py").write_text("one\n")
    one = commit_of(tree)
    (tree / "ignored.py").write_text("two\n")
    assert commit_of(tree) != one


def test_an_agent_that_lives_in_evals_counts(tree: Path) -> None:
    """S33 keeps evals/ out because the suite's version pins it; it does not pin an agent (decision 008)."""
    (tree / "evalfleet.toml").write_text('[harness.command]\nargv = ["python3", "evals/agent.py"]\n')
    (tree / "evals/agent.py").write_text("one\n")
    assert "evals/agent.py" in harness_files(read_tree_config(tree))


def test_files_globs_replace_the_default_rule(tree: Path) -> None:
    (tree / "evalfleet.toml").write_text('[harness]\nfiles = ["lib/**", "*.txt"]\n[harness.command]\nargv=["a"]\n')
    config = read_tree_config(tree)
    assert harness_files(config) == ["data.txt", "lib/deep/tool.py"]
    assert tree_commit(config) == git(tree, "rev-parse", "HEAD")
    (tree / "lib/extra.bin").write_bytes(b"\0")
    assert tree_commit(config) != git(tree, "rev-parse", "HEAD")


def test_a_glob_that_finds_nothing_is_refused(tree: Path) -> None:
    (tree / "evalfleet.toml").write_text('[harness]\nfiles = ["agnet.py"]\n')
    with pytest.raises(ConfigError, match=r"'agnet\.py' finds no file"):
        tree_commit(read_tree_config(tree))


def test_without_git_the_commit_is_a_digest_that_follows_content_names_and_mode(tree: Path) -> None:
    shutil.rmtree(tree / ".git")
    seen = {commit_of(tree)}
    (tree / "agent.py").write_text("print(3)\n")
    seen.add(commit_of(tree))
    (tree / "agent.py").rename(tree / "agent2.py")
    seen.add(commit_of(tree))
    (tree / "agent2.py").chmod(0o755)
    seen.add(commit_of(tree))
    assert len(seen) == 4
    assert all(len(commit) == 40 for commit in seen)
    assert commit_of(tree) in seen


def test_without_the_git_program_the_commit_is_a_digest(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = git(tree, "rev-parse", "HEAD")
    monkeypatch.setenv("PATH", "/nonexistent")
    version = read_tree_version(read_tree_config(tree))
    assert version.commit != head
    assert version.reason == "there is no git repository here"


def test_before_the_first_commit_the_commit_is_a_digest(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", ".")
    (tmp_path / "agent.py").write_text("x\n")
    version = read_tree_version(read_tree_config(tmp_path))
    assert version.head is None
    assert version.files == ("agent.py",)


def test_a_tree_inside_somebody_elses_repository_is_not_pinned_by_that(tree: Path) -> None:
    inner = tree / "work"
    (inner / "evals").mkdir(parents=True)
    (inner / "evalfleet.toml").write_text('[harness.command]\nargv = ["python3", "agent.py"]\n')
    (inner / "agent.py").write_text("x\n")
    with (tree / ".gitignore").open("a") as file:
        file.write("work/\n")
    git(tree, "commit", "-q", "-am", "ignore")
    assert commit_of(inner) != git(tree, "rev-parse", "HEAD")
    assert harness_files(read_tree_config(inner)) == ["agent.py", "evalfleet.toml"]


def test_a_tree_in_a_subfolder_looks_at_its_own_files_only(tree: Path) -> None:
    config = TreeConfig(root=tree / "lib")
    assert tree_commit(config) == git(tree, "rev-parse", "HEAD")
    (tree / "agent.py").write_text("changed above\n")
    assert tree_commit(config) == git(tree, "rev-parse", "HEAD")
    (tree / "lib/deep/tool.py").write_text("changed below\n")
    assert tree_commit(config) != git(tree, "rev-parse", "HEAD")


def test_git_variables_of_a_hook_do_not_lead_elsewhere(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other.git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "other.index"))
    found = read_tree_version(read_tree_config(tree))
    assert found.reason == ""


def test_a_repository_that_git_refuses_is_an_error_and_not_a_digest(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    with pytest.raises(UsageError, match=r"git refuses to read .* dubious ownership"):
        commit_of(tree)


def test_reading_a_tree_takes_no_lock_and_starts_no_monitor(tree: Path, tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    monitor = tmp_path / "monitor.sh"
    monitor.write_text(f"#!/bin/sh\ntouch {witness}\n")
    monitor.chmod(0o755)
    git(tree, "config", "core.fsmonitor", str(monitor))
    index = (tree / ".git/index").read_bytes()
    os.utime(tree / "agent.py", (1, 1))
    commit_of(tree)
    assert not witness.exists()
    assert (tree / ".git/index").read_bytes() == index


def test_s33_an_edit_in_the_second_of_the_commit_that_leaves_the_size_is_a_change(tree: Path) -> None:
    """Git compares whole seconds. What was written in the second of the index itself is read by it, so a copy of the
    index must be as old as the index."""
    git(tree, "config", "core.trustctime", "false")
    os.utime(tree / "agent.py", (10**9, 10**9))
    git(tree, "add", "agent.py")
    git(tree, "commit", "-q", "--allow-empty", "-m", "in one second")
    os.utime(tree / ".git/index", (10**9, 10**9))
    text = (tree / "agent.py").read_text()
    (tree / "agent.py").write_text(text.replace("print", "paint"))
    os.utime(tree / "agent.py", (10**9, 10**9))
    assert commit_of(tree) != git(tree, "rev-parse", "HEAD")


def test_a_link_counts_by_where_it_points(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "outside.py").write_text("1\n")
    (tree / "link.py").symlink_to(tmp_path / "outside.py")
    (tree / "folder.py").symlink_to(tmp_path)
    first = commit_of(tree)
    (tmp_path / "outside.py").write_text("2\n")
    assert commit_of(tree) == first
    (tree / "link.py").unlink()
    (tree / "link.py").symlink_to("agent.py")
    assert commit_of(tree) != first


def test_a_pipe_is_no_harness_file_and_nobody_waits_for_it(tree: Path) -> None:
    os.mkfifo(tree / "pipe.py")
    assert "pipe.py" not in harness_files(read_tree_config(tree))
    shutil.rmtree(tree / ".git")
    assert "pipe.py" not in harness_files(read_tree_config(tree))


def test_a_submodule_is_part_of_the_harness(tree: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    git(tmp_path, "init", "-q", "other")
    (other / "part.py").write_text("1\n")
    git(other, "add", ".")
    git(other, "commit", "-q", "-m", "part")
    git(tree, "submodule", "--quiet", "add", str(other), "part")
    git(tree, "commit", "-q", "-m", "with part")
    assert commit_of(tree) == git(tree, "rev-parse", "HEAD")
    (tree / "part" / "part.py").write_text("2\n")
    version = read_tree_version(read_tree_config(tree))
    assert version.commit != version.head
    assert "part/part.py" in version.files
    (tree / "part" / "part.py").write_text("3\n")
    assert commit_of(tree) != version.commit


def test_names_with_blanks_quotes_and_odd_bytes_are_told_apart(tree: Path) -> None:
    names = ["a b.py", 'q"uote.py', "ünï.py", "line\nbreak.py"]
    for name in names:
        (tree / name).write_text("x\n")
    assert set(names) <= set(harness_files(read_tree_config(tree)))
    seen = commit_of(tree)
    (tree / "line\nbreak.py").write_text("y\n")
    assert commit_of(tree) != seen


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_a_harness_file_that_cannot_be_read_is_named(tree: Path) -> None:
    (tree / "new.py").write_text("x\n")
    (tree / "new.py").chmod(0)
    with pytest.raises(UsageError, match=r"harness file new\.py cannot be read"):
        commit_of(tree)


def test_the_table_of_keys_is_the_whole_file() -> None:
    stated = {f"{table}.{key}" for table, keys in KEYS.items() for key in keys}
    written = {line.split(" = ")[0] for line in WHOLE.splitlines() if " = " in line}
    assert written <= {key.rsplit(".", 1)[1] for key in stated}
