"""What all sources of HTTP servers share: two addresses, one a mode, and requests side by side."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

from specbench.core.checks import check_count, check_seconds
from specbench.core.errors import ConfigError
from specbench.sources.contract import Mode, TextCompletion, TextRequest
from specbench.sources.http import MEBIBYTE, Server
from specbench.sources.parameters import check_supported
from specbench.sources.prometheus import Counters
from specbench.sources.values import Kind, is_a, is_logprob, is_token_ids

LONGEST_TIMEOUT = 1_000_000  # seconds


class ServedSource:
    """Base of sources of servers. A subclass says what a request is in its protocol, and what a reply says.

    Args:
        url: the server that speculates; None if only the plain one is sampled from.
        plain_url: the same engine and model without speculation.
        method: how the server speculates, for certificates and tables alone: nothing is sent of it.
        extra: put into the body of each request, for parameters of the engine's own.
        counters: names of counters in the text of /metrics, by "drafted", "accepted" and "steps"; None reads none.
        api_key: see :class:`specbench.sources.http.Server`, and so for timeout and retries.
        concurrency: requests that are sent at the same time.
        most_megabytes: of a reply.

    Attributes:
        totals: what the servers counted since they were opened, by mode; what others asked of them is counted too.

    Raises:
        ConfigError: no address, or a number out of its range.
    """

    engine = "a server"  # until it has been opened
    unsupported: frozenset[str]
    takes_seeds = True
    several: str  # the field of a body with the number of texts

    def __init__(
        self,
        url: str | None,
        plain_url: str | None = None,
        method: str | None = None,
        extra: Mapping[str, Any] | None = None,
        counters: Mapping[str, str] | None = None,
        api_key: str | None = "SPECBENCH_API_KEY",
        timeout: float | int = 120,
        retries: int = 5,
        concurrency: int = 1,
        most_megabytes: int = 16,
    ):
        if not 0 < check_seconds("source.timeout", timeout, "Use a number of seconds.") <= LONGEST_TIMEOUT:
            remedy = f"Use a number of seconds above 0, up to {LONGEST_TIMEOUT:,}."
            raise ConfigError("source.timeout", timeout, "no time for a reply", remedy)
        check_count("source.retries", retries, 0)
        self.method = method
        self.concurrency = check_count("source.concurrency", concurrency)
        self.extra, self.totals = _mapping("source.extra", extra), {}
        addresses = {Mode.SPECULATIVE: ("source.url", url), Mode.PLAIN: ("source.plain_url", plain_url)}
        most = check_count("source.most_megabytes", most_megabytes) * MEBIBYTE
        self.servers = {
            mode: Server(key, address, api_key, timeout, retries, most)
            for mode, (key, address) in addresses.items()
            if address is not None
        }
        if not self.servers:
            raise ConfigError("source.url", None, "no server", "Give source.url, source.plain_url or both.")
        self.modes = frozenset(self.servers)
        self.counters = Counters(_mapping("source.counters", counters))

    def open(self) -> None:
        """Asks each server what it is."""
        engines = {self.describe(server): None for server in self.servers.values()}
        self.engine = " and ".join(engines)
        for mode, server in self.servers.items():
            self.totals[mode] = dict.fromkeys(self.counters.read(server, mode is Mode.SPECULATIVE), 0.0)

    def complete(self, requests: Sequence[TextRequest], mode: Mode) -> list[TextCompletion]:
        """Sends requests to the mode's server, ``concurrency`` at the same time."""
        check_supported(requests, self.unsupported, self.engine)
        server = self.servers[mode]
        before = self.counters.read(server, mode is Mode.SPECULATIVE)
        with ThreadPoolExecutor(self.concurrency) as pool:
            futures = [pool.submit(self._text, request, mode) for request in requests]
            try:
                completions = [future.result() for future in futures]
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        for name, value in self.counters.read(server, mode is Mode.SPECULATIVE).items():
            if value < before[name]:
                raise server.error(
                    f"its counter {self.counters.names[name]} went back", "Was it restarted? Begin anew."
                )
            self.totals[mode][name] += value - before[name]
        return completions

    def close(self) -> None:
        for server in self.servers.values():
            server.close()

    def choices(self, request: TextRequest, count: int, mode: Mode) -> list[TextCompletion]:
        """Returns the texts that the server samples together for one request, however many come."""
        check_supported([request], self.unsupported, self.engine)
        return self._texts(request, mode, count)

    def tokenized(self, body: Mapping[str, Any]) -> tuple[int, ...]:
        """Returns the token ids that a server makes of a prompt at /tokenize. Raises ConfigError if it returns none."""
        server = next(iter(self.servers.values()))
        reply = server.json("/tokenize", body)
        ids = reply.get("tokens") if isinstance(reply, dict) else None
        if not is_token_ids(ids):
            problem = f"/tokenize returned no token ids: {server.shown(repr(reply))}"
            raise server.error(problem, "Is it the server you mean?")
        return tuple(ids)

    def _text(self, request: TextRequest, mode: Mode) -> TextCompletion:
        """Sends a request for one text. Raises ConfigError unless one comes."""
        texts = self._texts(request, mode)
        if len(texts) != 1:
            problem = f"it returned {len(texts)} texts for prompt {request.prompt_id!r}, and the request was for 1"
            remedy = "Is it the server that you mean? See source.extra too."
            raise self.servers[mode].error(problem, remedy)
        return texts[0]

    def _texts(self, request: TextRequest, mode: Mode, several: int | None = None) -> list[TextCompletion]:
        """Sends a request, for ``several`` texts together or for one."""
        server, (path, body) = self.servers[mode], self.call_of(request)
        body = _merged(body, self.extra)
        if several is not None:
            body = self.asking_for(body, several)
        start = time.perf_counter()
        reply = Reply(server, server.json(path, body), request)
        parts, seconds = self.parts(reply), time.perf_counter() - start
        return [self._checked(self.read(part, mode, seconds)) for part in parts]

    def _checked(self, completion: TextCompletion) -> TextCompletion:
        """Returns it. Raises ConfigError for a plain text with a draft, and for an empty one that nothing ended."""
        request, server = completion.request, self.servers[completion.mode]
        if completion.mode is Mode.PLAIN and completion.counters.get("drafted"):
            problem = "the server without speculation drafts tokens"
            raise server.error(problem, "Start it without a draft (conf/source/*.yaml say how).")
        cut_off = completion.finish_reason == "length" or request.sampling.ignore_eos
        if not completion.text and not completion.token_ids and cut_off:
            raise server.error(f"prompt {request.prompt_id!r} has an empty text", "See the server's own log.")
        return completion

    def describe(self, server: Server) -> str:
        """The engine's name and version. Raises ConfigError if the server cannot be used."""
        raise NotImplementedError

    def call_of(self, request: TextRequest) -> tuple[str, dict[str, Any]]:
        """The path and the body of a request."""
        raise NotImplementedError

    def asking_for(self, body: dict[str, Any], count: int) -> dict[str, Any]:
        """The body of a request for several texts together."""
        return {**body, self.several: count}

    def parts(self, reply: Reply) -> list[Reply]:
        """The parts of a reply that :meth:`read` takes, one a text: those of a list, or the reply itself."""
        texts = reply.part if isinstance(reply.part, list) else [reply.part]
        return [Reply(reply.server, text, reply.request) for text in texts]

    def read(self, reply: Reply, mode: Mode, seconds: float) -> TextCompletion:
        """What a reply says. Raises ConfigError if it says something else."""
        raise NotImplementedError


def _merged(body: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
    """A body with more fields; the fields of an object that both have are merged."""
    objects = {
        name: {**body[name], **value}
        for name, value in extra.items()
        if isinstance(value, dict) and isinstance(body.get(name), dict)
    }
    return {**body, **extra, **objects}


def _mapping(key: str, value: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns a setting as a dict. Raises ConfigError unless it is a mapping that JSON can hold."""
    try:
        return dict(json.loads(json.dumps(dict(value or {}), allow_nan=False)))
    except (TypeError, ValueError) as error:
        raise ConfigError(key, value, f"no mapping for JSON ({error})", "Use {NAME: VALUE}.") from None


class Reply:
    """A part of a server's reply, whose fields are checked as they are read.

    Args:
        server: whose reply it is, for messages.
        part: the decoded JSON.
        place: of the part in the reply, for messages.
    """

    def __init__(self, server: Server, part: Any, request: TextRequest, place: str = ""):
        self.server, self.part, self.request, self.place = server, part, request, place

    def get(self, name: str, kind: Kind, remedy: str) -> Any:
        """Returns a field. Raises ConfigError unless it is there and of that kind (sources/values.py)."""
        value = self._value(name)
        return value if is_a(kind, value) else self._refuse(name, remedy)

    def within(self, name: str, remedy: str) -> Reply:
        """An object in a field, or the first one of a list."""
        value = self._value(name)
        first = value[0] if isinstance(value, list) and value else value
        if not isinstance(first, dict):
            self._refuse(name, remedy)
        return Reply(self.server, first, self.request, f"{self.place}{name}.")

    def has(self, name: str) -> bool:
        return self._value(name) is not None

    def logprobs(self, name: str, remedy: str) -> tuple[float, ...]:
        """The log-probabilities of a list of objects, one for each token, each in its field ``logprob``."""
        tokens = self.get(name, list, remedy)
        return tuple(Reply(self.server, token, self.request).get("logprob", is_logprob, remedy) for token in tokens)

    def check_prompt(self, tokens: int) -> None:
        """Raises ConfigError if the engine read fewer tokens of the prompt than it was sent."""
        ids = self.request.token_ids
        if ids is not None and tokens < len(ids):
            problem = f"it read {tokens} of the {len(ids)} tokens of prompt {self.request.prompt_id!r}"
            raise self.server.error(problem, "Start it with a longer context, or shorten the prompt.")

    def _value(self, name: str) -> Any:
        return self.part.get(name) if isinstance(self.part, dict) else None

    def _refuse(self, name: str, remedy: str) -> NoReturn:
        problem = f"the reply to prompt {self.request.prompt_id!r} has no {self.place}{name} that can be read"
        raise self.server.error(f"{problem}: {self.server.shown(repr(self.part))}", remedy)
