"""Good content with something changed, made up by hypothesis: JSON values, bytes, lines, headers of safetensors.

What is changed stays near to what a loader expects, so that most of it gets past the first check.
"""

import copy
import json
import math
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

DEEP = 3000  # brackets: more than Python's parser goes down
SHARE = 0.08  # the least share of good examples, and of refused ones
# What a JSON file may hold in any place.
ODD: st.SearchStrategy[Any] = st.sampled_from(
    (
        *(None, True, False, 0, 1, -1, 2, 3, 7, 255, 2**31, 2**32, 2**62, 2**63, -(2**63), 2**64, 10**30, 10**400),
        *(0.0, -0.0, 0.5, 1.5, -1e300, 1e-320, float("nan"), float("inf"), -float("inf")),
        *("", " ", "x", "1", "true", "\0", "\ud800", "é", "😀", "\x1b[31m", "a\nb", "..", "/dev/zero", "x" * 5000),
        *("float32", "int8", "F32", "I64", "BOOL", "F8_E4M3", "nope", "{{ 1/0 }}", "{% for"),
        *([], [0], [1, "x"], [[]], [None], [-1, 2], [2**40, 2**40], [[[[[[]]]]]], {}, {"a": 1}, {"": None}),
    )
).map(copy.deepcopy)  # lists and objects that later changes may reach
# What every value is replaced by once.
PLAIN = (None, True, -1, 10**400, 0.5, float("nan"), "", "x" * 5000, "\ud800", [], {}, [[[]]])
# What may be put between any two bytes.
PIECES: st.SearchStrategy[bytes] = st.sampled_from(
    (
        *(b"\0", b"\xff", b"\xc3", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\r", b"\n", b"\n\n", b" ", b'"', b"\\", b","),
        *(b"{", b"}", b"[", b"]", b"[]", b"{}", b"null", b"NaN", b"-Infinity", b"1e999", b"-", b"9" * 5000, b"\\ud800"),
        *(b"[" * DEEP, b'{"a":' * DEEP, b"\0" * 64, b"\x80" * 16, b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00"),
    )
)


def try_all(made: st.SearchStrategy[Any], read: Callable[[Any], str | None], count: int) -> None:
    """Reads ``count`` examples, the same ones each time (tests/helpers/independent.py).

    Neither all of them may be nonsense nor all fine: a share between SHARE and 1 - SHARE has to be good. By Hoeffding's
    inequality a generator of such a share fails with probability below 2e-6. 60 examples refute nothing; 2,000 refute
    a generator of which fewer than 1% or more than 99% are good, with probability above 0.99.

    Args:
        read: raises if something is wrong; else returns the message that refuses the example, None if it is good.
    """
    messages: list[str | None] = []

    slow = [HealthCheck.too_slow, HealthCheck.data_too_large]

    @settings(max_examples=count, derandomize=True, database=None, deadline=None, suppress_health_check=slow)
    @given(made)
    def try_example(content: Any) -> None:
        messages.append(read(content))

    try_example()
    slack = math.sqrt(math.log(1e6) / (2 * len(messages)))
    assert SHARE - slack < messages.count(None) / len(messages) < 1 - SHARE + slack


def _places(content: Any) -> Iterator[tuple[Any, Any]]:
    """Every value inside a JSON value, as its container and its key there."""
    keys: Sequence[Any] = ()
    if isinstance(content, dict):
        keys = list(content)
    elif isinstance(content, list):
        keys = range(len(content))
    for key in keys:
        yield content, key
        yield from _places(content[key])


@st.composite
def edited(draw: st.DrawFn, content: Any, most: int = 2) -> Any:
    """A JSON value with up to ``most`` changes: values replaced, left out, doubled, or put under another key.

    How often a value is chosen does not depend on how many others stand beside it: first a container is drawn.
    """
    content = copy.deepcopy(content)
    for _ in range(draw(st.integers(1, most))):
        by_container: dict[int, list[tuple[Any, Any]]] = {}
        for container, key in _places(content):
            by_container.setdefault(id(container), []).append((container, key))
        if not by_container:
            return draw(ODD)
        container, key = draw(st.sampled_from(draw(st.sampled_from(list(by_container.values())))))
        change = draw(st.sampled_from(("odd", "odd", "near", "near", "drop", "double", "rename")))
        if change == "odd":
            container[key] = draw(ODD)
        elif change == "near":
            container[key] = draw(_near(container[key]))
        elif change == "drop":
            del container[key]
        elif isinstance(container, list):
            container.insert(key, copy.deepcopy(container[key]))
        else:
            other = draw(st.sampled_from([*container, "", "x", "\ud800"]))
            container[other] = copy.deepcopy(container[key])
            if change == "rename" and other != key:
                del container[key]
    return content


def each_odd(content: Any) -> Iterator[Any]:
    """A JSON value with each value inside it replaced by each of PLAIN, and left out."""
    for number in range(len(list(_places(content)))):
        for odd in (*PLAIN, ...):
            changed = copy.deepcopy(content)
            container, key = list(_places(changed))[number]
            if odd is ...:
                del container[key]
            else:
                container[key] = odd
            yield changed


def _near(value: Any) -> st.SearchStrategy[Any]:
    """Values of the same kind: what a check of kinds lets pass."""
    if isinstance(value, bool):
        return st.just(not value)
    if isinstance(value, int):
        return st.sampled_from((value - 1, value + 1, -value, value * 2, value * 1000, 0, 2**31 - 1, 2**62))
    if isinstance(value, float):
        return st.sampled_from((-value, value * 1e30, 0.0, float("nan"), float("inf"), 5))
    if isinstance(value, str):
        return st.sampled_from(
            (value.upper(), value[:-1], value * 300, value + "\0", " " + value, value + "\ud800", "")
        )
    if isinstance(value, list):
        return st.sampled_from((value * 2, value[:-1], value[::-1], [value]))
    return ODD


@st.composite
def damaged(draw: st.DrawFn, content: bytes, first: int = 0, most: int = 4, slight: bool = False) -> bytes:
    """Bytes with up to ``most`` changes from place ``first`` on: set, put in, left out, doubled, or cut off there.

    Args:
        slight: single bytes are set, seven times of eight; a binary format seldom survives more.
    """
    changed = bytearray(content)
    for _ in range(draw(st.integers(1, most))):
        at = draw(st.integers(min(first, len(changed)), len(changed)))
        to = min(len(changed), at + draw(st.sampled_from((1, 1, 2, 8, 64))))
        if slight and draw(st.integers(0, 7)):
            changed[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
            continue
        change = draw(st.sampled_from(("set", "set", "set", "put in", "leave out", "double", "cut")))
        if change == "set":
            changed[at:to] = draw(st.binary(min_size=to - at, max_size=to - at))
        elif change == "put in":
            changed[at:at] = draw(PIECES)
        elif change == "leave out":
            del changed[at:to]
        elif change == "double":
            changed[at:at] = changed[at:to]
        elif at > 0:
            del changed[at:]
    return bytes(changed)


def dumped(content: Any) -> bytes:
    """As JSON, with NaN and Infinity as Python writes them."""
    return json.dumps(content).encode()


@st.composite
def json_files(draw: st.DrawFn, content: Any) -> bytes:
    """A small JSON file, changed as a value or as bytes."""
    if draw(st.booleans()):
        return dumped(draw(edited(content)))
    return draw(damaged(dumped(content)))


@st.composite
def line_files(draw: st.DrawFn, lines: Sequence[Any]) -> bytes:
    """JSON lines with one line changed, as a value or as bytes; or with lines left out, doubled or in another order."""
    written = [dumped(line) for line in lines]
    at = draw(st.integers(0, len(lines) - 1))
    change = draw(st.sampled_from(("value", "value", "value", "bytes", "lines", "file")))
    if change == "value":
        written[at] = dumped(draw(edited(lines[at])))
    elif change == "bytes":
        written[at] = draw(damaged(written[at]))
    elif change == "lines":
        written = [written[place] for place in draw(st.lists(st.integers(0, len(lines) - 1), max_size=6))]
    whole = b"\n".join(written) + b"\n"
    return draw(damaged(whole)) if change == "file" else whole


@st.composite
def safetensors_files(draw: st.DrawFn, content: bytes) -> bytes:
    """A safetensors file with a header, a length or a body that is another one."""
    length = int.from_bytes(content[:8], "little")
    header, body = content[8 : 8 + length], content[8 + length :]
    kinds = ("header", "header", "header", "header bytes", "length", "body", "numbers", "numbers")
    change = draw(st.sampled_from(kinds))
    if change == "header":
        header = dumped(draw(edited(json.loads(header), most=3)))
    elif change == "header bytes":
        header = draw(damaged(header))
    elif change == "body":
        body = draw(st.sampled_from((body[:-1], body + b"\0", b"", body * 2)))
    elif change == "numbers" and draw(st.booleans()):  # all of a kind: NaN, infinities, the largest, zeros
        ends = (b"\0\0\x80\x7f", b"\0\0\x80\xff", b"\xff\xff\x7f\x7f", b"\x01\0\0\0")
        body = (draw(st.sampled_from((b"\xff", b"\0", *ends))) * len(body))[: len(body)]
    elif change == "numbers":  # one of any kind, anywhere: too many for a run to exhaust the good ones
        at = 4 * draw(st.integers(0, len(body) // 4 - 1))
        body = body[:at] + struct.pack("<f", draw(st.floats(width=32))) + body[at + 4 :]
    due = len(header)
    if change == "length":
        due = draw(st.sampled_from((0, 1, due - 1, due + 1, len(content), 10**8, 2**31, 2**40, 2**63 - 1, 2**64 - 1)))
    return due.to_bytes(8, "little") + header + body
