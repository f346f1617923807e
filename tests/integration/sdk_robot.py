"""What does the official client do? Runs under the interpreter that has it; imports nothing of ours.

On stdin one call a line, `{"call": "runs.create", "args": […], "keywords": {…}}`; on stdout one answer a line,
`{"value": …}` or `{"error": {"type", "bases", …}}`. Arguments: base URL, token, and `sync` or `async` for
`SploxClient` or `AsyncSploxClient`.

runs.create      a method of a resource of the client
run.wait         a method of the bound run whose id is the first argument
evals.run_cases  a function of `splox.evals`; a `scorer` is `[id, version]`, and passes what was expected
raw              the client's own transport: method, path, keywords
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import json
import sys
from typing import Any

from splox import AsyncSploxClient, SploxClient, evals

TOLD = ("status_code", "code", "message", "trace_id", "errors", "retry_after", "problem")


def plain(value: Any) -> Any:
    """As JSON. A grid says its evaluation, too."""
    if isinstance(value, evals.RunGrid):
        return {"rows": [[plain(result) for result in row] for row in value], "evaluation": plain(value.evaluation)}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else value


def grade(result: evals.RunResult, case: evals.EvalCaseSpec) -> evals.Score:
    passed = result.output == case.expected
    return evals.Score("passed" if passed else "failed", "1.00" if passed else "0.00", f"said {result.output}")


async def settled(value: Any) -> Any:
    """The end of whatever a method gave: all of an iterator, what a coroutine returns, or itself."""
    if inspect.isawaitable(value):
        value = await value
    if hasattr(value, "__aiter__"):
        return [plain(item) async for item in value]
    if inspect.isgenerator(value):
        return [plain(item) for item in value]
    return plain(value)


async def call(client: Any, name: str, args: list[Any], keywords: dict[str, Any]) -> Any:
    room, _, method = name.partition(".")
    if name == "raw":
        return await settled(client._transport.request(*args, **keywords))
    if room == "evals":
        if "scorer" in keywords:
            keywords["scorer"] = evals.Scorer(*keywords["scorer"], score_fn=grade)
        return plain(getattr(evals, method)(client, *args, **keywords))
    if room == "run":
        run = client.runs.get(args[0])
        bound = await run if inspect.isawaitable(run) else run
        return await settled(getattr(bound, method)(*args[1:], **keywords))
    return await settled(getattr(getattr(client, room), method)(*args, **keywords))


async def main(url: str, token: str, flavour: str) -> None:
    client = (AsyncSploxClient if flavour == "async" else SploxClient)(token, base_url=url)
    for line in sys.stdin:
        told = json.loads(line)
        try:
            answer = {"value": await call(client, told["call"], told["args"], told["keywords"])}
        except Exception as error:
            bases = [base.__name__ for base in type(error).__mro__]
            facts = {name: getattr(error, name, None) for name in TOLD}
            answer = {"error": {"type": bases[0], "bases": bases, "text": str(error), **facts}}
        print(json.dumps(answer), flush=True)


asyncio.run(main(*sys.argv[1:]))
