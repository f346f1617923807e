"""The mutants themselves: what is changed, and what is left alone."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.mutation.__main__ import HOUSE, MODULES, explained
from tests.mutation.mutants import mutants_of


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("if a < b: pass", ["if a <[ → =] b:", "if a [< → >=] b:"]),
        ("x = a if b else 1", ["x = [a if b else 1 → None]", "x = a if [b → not b] else 1", "x = a if b else [1 → 2]"]),
        ("x = not a\n", ["x = [not a → None]", "x = [not a → a]"]),
        ("if a and b: pass", ["if a [and → or] b:"]),
        ("f(any(a), 'b')", ["[f(any(a), 'b') → ]", "f([any → all](a), 'b')", "f(any(a), '[b → XXbXX]')"]),
        ("n += 1", ["n [+ → -]= 1", "n += [1 → 2]"]),
        ("x = -1\n", ["x = [-1 → None]", "x = [-1 → 1]", "x = -[1 → 2]"]),
        ("for a in b:\n    break", ["[break → continue]"]),
        ('"""Says nothing."""\nfrom a import b\nX: int | None\nT: TypeAlias = A | B', []),
        ("if TYPE_CHECKING:\n    x = 1", []),
        ("@d(1)\ndef f(a: int = 1) -> int:\n    return 2", ["def f(a: int=[1 → 2]) -> int:", "return [2 → 3]"]),
    ],
)  # fmt: skip
def test_each_place_is_changed_in_each_way(text: str, changes: list[str]) -> None:
    tree = ast.parse(text)
    before = ast.dump(tree)
    assert [mutant.change for mutant in mutants_of(tree)] == changes
    assert ast.dump(tree) == before


def test_a_mutant_is_one_change_in_code_that_compiles() -> None:
    for module in MODULES:
        text = (HOUSE / module).read_text()
        tree = ast.parse(text)
        for mutant in mutants_of(tree)[::20]:
            changed = ast.parse(text)
            [same] = [
                other for other in mutants_of(changed) if (other.where, other.change) == (mutant.where, mutant.change)
            ]
            same.make()
            compile(ast.fix_missing_locations(changed), module, "exec")
            assert ast.unparse(changed) != ast.unparse(tree)


def test_what_runs_at_import_and_what_in_a_call() -> None:
    text = "X = f(1)\nclass A:\n    y: int = 2\n    def g(self, a=3):\n        return 4\n"
    found = {mutant.change: (mutant.where, mutant.at_import) for mutant in mutants_of(ast.parse(text))}
    assert found["X = f([1 → 2])"] == ("", True)
    assert found["y: int = [2 → 3]"] == ("A", True)
    assert found["def g(self, a=[3 → 4]):"] == ("A", True)
    assert found["return [4 → 5]"] == ("A.g", False)


def test_every_survivor_that_is_explained_is_a_mutant_of_today() -> None:
    known = {
        (module, mutant.where, mutant.change)
        for module in MODULES
        for mutant in mutants_of(ast.parse(Path(HOUSE / module).read_text()))
    }
    assert {key for key in explained() if key not in known} == set()
