"""One HTTP server that a configuration names: replies of bounded size, no redirects, retries of what may pass."""

import functools
import json
import os
import ssl
import time
from typing import Any
from urllib.parse import urlsplit

import httpx

from specbench.core.errors import ConfigError, OutageError

RETRIED = (429, 502, 503, 504)  # too many requests, or a server that is still loading its model
LONGEST_WAIT = 30.0  # seconds between two attempts
SHOWN = 200  # characters of a reply that a message shows
MEBIBYTE = 2**20
START = "Start the server (conf/source/*.yaml say how), and check the address."


class StatusError(ConfigError):
    """A server's refusal, with its HTTP status."""

    status = 0


class FaultError(StatusError, OutageError):
    """A status that is the server's fault and not the request's: 429, after the last attempt, or 500 and above."""


class Server:
    """A server's address, and requests to it. Nothing is sent to any other host: neither redirects nor proxies of the
    environment are followed.

    Args:
        key: the configuration key of the address, for messages.
        url: with or without /v1 at its end.
        api_key: the name of an environment variable. Its value, if there is one, is sent as a bearer token.
        timeout: seconds for a reply, from sending its request.
        retries: of requests that meet a full or loading server, or a connection that breaks.
        most_bytes: of a reply.

    Raises:
        ConfigError: not an address, or a key that no header can hold.
    """

    def __init__(self, key: str, url: str, api_key: str | None, timeout: float | int, retries: int, most_bytes: int):
        self.key, self.url = key, _address(key, url)
        self.timeout, self.retries, self.most_bytes = timeout, retries, most_bytes
        if not isinstance(api_key, str | None):
            remedy = "Use the name of an environment variable, or null for no key."
            raise ConfigError("source.api_key", api_key, "not a name", remedy)
        self._secret = os.environ.get(api_key, "") if api_key else ""
        if not (self._secret.isascii() and self._secret.isprintable()) or self._secret != self._secret.strip():
            problem = "its value cannot be sent: it is not printable ASCII, or begins or ends with a space"
            raise ConfigError("source.api_key", api_key, problem, "Set the variable to the key alone.")
        headers = {"Accept-Encoding": "identity", "Content-Type": "application/json"}
        if self._secret:
            headers["Authorization"] = f"Bearer {self._secret}"
        self._client = httpx.Client(
            headers=headers, timeout=timeout, follow_redirects=False, trust_env=False, verify=_certificates()
        )

    def json(self, path: str, body: object = None) -> Any:
        """The reply to a POST of ``body``, or to a GET if it is None.

        Raises:
            StatusError: the server refuses.
            OutageError: it cannot be reached, takes too long, is too busy, or replies status 500 or above.
            ConfigError: it replies anything but JSON of bounded size.
        """
        content = self._reply(path, body)
        try:
            return json.loads(content)
        except (ValueError, RecursionError):
            raise self.error(
                f"{path} replied no JSON: {self.shown(content)}", "Is it the server that you mean?"
            ) from None

    def text(self, path: str) -> str:
        """The reply to a GET. Raises as ``json`` does."""
        return self._reply(path, None).decode(errors="replace")

    def error(self, problem: str, remedy: str) -> ConfigError:
        return ConfigError(self.key, self.url, problem, remedy)

    def outage(self, problem: str, remedy: str) -> OutageError:
        return OutageError(self.key, self.url, problem, remedy)

    def shown(self, content: bytes | str) -> str:
        """The beginning of a reply, without the key, for messages."""
        text = content if isinstance(content, str) else content[: 4 * SHOWN].decode(errors="replace")
        if self._secret:
            text = text.replace(self._secret, "***")
        return repr(text[:SHOWN]) + ("..." if len(text) > SHOWN else "")

    def _words(self, error: Exception) -> str:
        return f"{type(error).__name__}: {self.shown(str(error))}"

    def close(self) -> None:
        self._client.close()

    def _reply(self, path: str, body: object) -> bytes:
        for attempt in range(self.retries + 1):
            last = attempt == self.retries
            try:
                status, headers, content = self._once(path, body)
            except (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError) as error:
                if last:
                    problem = f"{path} broke off {attempt + 1} times ({self._words(error)})"
                    raise self.outage(problem, "See the server's own log.") from error
                status, headers = 503, httpx.Headers()
            if status < 300:
                return content
            if status < 400:
                location = self.shown(_without_secrets(headers.get("location", "?")))
                problem = f"{path} redirects to {location}, where nothing is sent"
                raise self.error(problem, f"Give {self.key} the address that you mean.")
            if status not in RETRIED or last:
                raise self._refusal(path, status, content)
            time.sleep(_wait(headers, attempt))
        raise AssertionError("the last attempt returns or raises")

    def _once(self, path: str, body: object) -> tuple[int, httpx.Headers, bytes]:
        end, content = time.monotonic() + self.timeout, bytearray()
        try:
            method = "GET" if body is None else "POST"
            # In ASCII: a text may hold half of a surrogate pair, which httpx would not write.
            sent = None if body is None else json.dumps(body)
            with self._client.stream(method, self.url + path, content=sent) as reply:
                for chunk in reply.iter_bytes():
                    content += chunk
                    if len(content) > self.most_bytes:
                        problem = f"{path} replied more than {self.most_bytes // MEBIBYTE} MiB"
                        raise self.error(problem, "Is it the server that you mean? Or raise source.most_megabytes.")
                    if time.monotonic() > end:
                        raise httpx.ReadTimeout("")
                return reply.status_code, reply.headers, bytes(content)
        except (httpx.ConnectError, UnicodeError) as error:  # UnicodeError: a host that no DNS can name
            raise self.outage(f"cannot be reached ({error})", START) from error
        except httpx.TimeoutException as error:
            problem = f"{path} gave no whole reply in {self.timeout:g} s"
            raise self.outage(problem, "Raise source.timeout, or lower source.concurrency.") from error
        except (httpx.DecodingError, httpx.LocalProtocolError) as error:
            raise self.error(f"{path} cannot be exchanged ({self._words(error)})", START) from error

    def _refusal(self, path: str, status: int, content: bytes) -> StatusError:
        try:
            reply = json.loads(content)
            words = reply["error"] if isinstance(reply["error"], str) else reply["error"]["message"]
        except (ValueError, RecursionError, KeyError, TypeError):
            words = content[: 4 * SHOWN].decode(errors="replace")
        problem = f"{path} replied status {status}: {self.shown(str(words))}"
        remedy = "Set the variable that source.api_key names." if status in (401, 403) else "See the server's own log."
        kind = FaultError if status in RETRIED or status >= 500 else StatusError
        refusal = kind(self.key, self.url, problem, remedy)
        refusal.status = status
        return refusal


def _address(key: str, url: str) -> str:
    remedy = "Give the address of a server, such as http://127.0.0.1:8080."
    if "@" in str(url).partition("//")[2].partition("/")[0]:
        problem = "an address with a user's name or password, which rows would keep"
        raise ConfigError(key, "...", problem, "Put the key into the variable that source.api_key names.")
    try:
        _ = urlsplit(url).port  # raises ValueError for brackets and ports that httpx lets pass
        parsed = httpx.URL(url)
        host = parsed.host.encode("idna")
    except (httpx.InvalidURL, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(key, url, f"no address ({error})", remedy) from None
    if parsed.scheme not in ("http", "https") or not host or parsed.query or parsed.fragment:
        raise ConfigError(key, url, "no address of a server", remedy)
    return url.rstrip("/").removesuffix("/v1")


def _without_secrets(location: str) -> str:
    """An address without a user's name and password, query and fragment, which may hold keys of other servers."""
    try:
        parts = urlsplit(location)
    except ValueError:
        return "?"
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def _wait(headers: httpx.Headers, attempt: int) -> float:
    """Seconds before the next attempt: what the server asks for, else twice as long each time."""
    wait = headers.get("retry-after", "")
    return min(float(wait) if wait.isdecimal() else 0.5 * 2 ** min(attempt, 10), LONGEST_WAIT)


@functools.cache
def _certificates() -> ssl.SSLContext:
    """The authorities that httpx trusts. Each client would read their certificates anew, in 25 ms."""
    return httpx.create_ssl_context(trust_env=False)
