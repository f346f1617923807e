"""Who answers a grader's `t.llm` on this server? The OpenAI-compatible endpoint that `[judge]` names.

What goes wrong says who has to act (S26):

- ConfigError, CredentialError: the operator. No judge is set, there is none of this model at this address, its key is
  not set or was refused (401, 403).
- ProblemAnswer 403 `insufficient_balance`: the operator too (no money).
- TargetUnreachable, ProblemAnswer 429 `rate_limited` and 502 `upstream_unavailable`: infrastructure; try again.
- ProblemAnswer 400 `invalid_body`: the endpoint refused this prompt (too long, filtered), or has no such model as the
  grader named: the call's own trouble.
- UnreadableAnswer: an answer that is no chat completion.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evalfleet.contract import jsontext
from evalfleet.contract.outbound import way_to
from evalfleet.contract.retry import retry_after_seconds
from evalfleet.errors import ConfigError, CredentialError, ProblemAnswer, TargetUnreachable, UnreadableAnswer
from evalfleet.server.drivers.chat_completions import ChatAnswer, completions_url, plain, price_of
from evalfleet.server.drivers.credentials import secret
from evalfleet.server.driving import Failure
from evalfleet.surroundings import user_environment
from evalfleet.treeconfig import CONFIG_FILE, JudgeConfig

if TYPE_CHECKING:
    import httpx

DEADLINE = 60.0  # twice what a grader may take: past it nobody waits for the answer any more
_PROBLEMS = {
    "out_of_funds": (403, "insufficient_balance"),
    "rate_limited": (429, "rate_limited"),
    "upstream_unavailable": (502, "upstream_unavailable"),
}


@dataclass(frozen=True, slots=True)
class JudgeAnswer:
    """`tokens` of prompt and answer together; `amount` a plain decimal, None where `[judge.price]` is not set."""

    text: str
    tokens: int
    amount: str | None
    currency: str | None = None


class Judge:
    """The judge of one tree. `config` None: there is none, and every call says so."""

    def __init__(self, config: JudgeConfig | None, *, environ: Mapping[str, str] | None = None) -> None:
        self._config = config
        self._environ = user_environment() if environ is None else environ
        self._client: httpx.AsyncClient | None = None

    @property
    def configured(self) -> bool:
        return self._config is not None

    def check(self) -> None:
        """ConfigError or SettingError if no call could succeed as things stand. Calls nothing."""
        config = self._settings()
        self._key(config)
        way_to(config.base_url, self._environ)

    async def answer(self, prompt: str, model: str | None = None) -> JudgeAnswer:
        """One prompt, one text. `model` instead of the one in the settings. Errors: see the top of this file."""
        # Imported at the first call: a server whose graders ask no model does not wait for an HTTP client (0.2 s).
        from evalfleet.server.drivers.openai import read_completion
        from evalfleet.server.drivers.upstream import Lost, address, ask, make_client, read_some, status_failure

        config = self._settings()
        key = self._key(config)
        url = completions_url(config.base_url)
        if self._client is None:
            self._client = make_client(url)
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        body = jsontext.dumps({"model": model or config.model, "messages": [{"role": "user", "content": prompt}]})
        answer = ChatAnswer()
        try:
            async with (
                asyncio.timeout(DEADLINE),
                ask(self._client, url, body, headers) as response,
            ):
                if not response.is_success:
                    said = await read_some(url, response)
                    secrets = [key] if key else []
                    failure = status_failure(url, response.status_code, said, secrets, prefix="judge_http")
                    if response.status_code == 404 and model is None:  # then it is [judge] that names what is not there
                        raise ConfigError(CONFIG_FILE, f"[judge] base_url or model: the judge: {failure.message}")
                    told = retry_after_seconds(response.headers.get("retry-after"), now=time.time())
                    raise _refusal(failure, told)
                unread = await read_completion(url, response, answer)
        except TimeoutError as error:
            raise TargetUnreachable(f"the judge at {address(url)} did not answer within {DEADLINE:g} s") from error
        except Lost as lost:
            raise TargetUnreachable(f"the judge: {lost.failure.message}") from lost
        if unread is not None:
            if unread.retryable:
                raise _refusal(unread, None)
            raise UnreadableAnswer(f"the judge: {unread.message}")
        usage = answer.usage
        amount = price_of(usage, config.price) if usage is not None else None
        return JudgeAnswer(
            text=answer.text,
            tokens=usage.total if usage is not None else 0,
            amount=None if amount is None else plain(amount),
            currency=config.price.currency if config.price is not None else None,
        )

    async def aclose(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def _settings(self) -> JudgeConfig:
        if self._config is None:
            raise ConfigError(CONFIG_FILE, "no judge is set: t.llm needs [judge] with base_url and model")
        return self._config

    def _key(self, config: JudgeConfig) -> str:
        return secret(self._environ, config.api_key_env, "[judge] api_key_env") if config.api_key_env else ""


def _refusal(failure: Failure, retry_after: float | None) -> ProblemAnswer | CredentialError:
    message = f"the judge: {failure.message}"
    if failure.code == "agent_unauthorized":
        return CredentialError(message)
    status, code = _PROBLEMS.get(failure.code, (400, "invalid_body"))
    return ProblemAnswer(status, code, message, retry_after=retry_after)
