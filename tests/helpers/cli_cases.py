"""Command lines, good and bad, and what each must say."""

import json
from dataclasses import dataclass, field

HF = ("pair=hf", "pair.draft=embedded:draft")
# Reading the embedded prompts takes longer than writing a few tokens.
CUT = "sampler.truncate_prompt_tokens=8"
QUICK = (CUT, "workload.limit=1", "max_new_tokens=3", "protocol.warmup=0", "tracking.mode=disabled")
QUICK_CHECK = ("protocol.check.prefixes=1", "protocol.check.draws=4")
TINY = (CUT, "workload.limit=3", "max_new_tokens=7", "tracking.mode=disabled")
TINY_COST = (
    *("protocol.batches=[1,2]", "protocol.gammas=[2]", "protocol.contexts=[8]"),
    *("protocol.steps=2", "protocol.rounds=1"),
)
# For protocol=exactness: no time to look for the thresholds of the code, which takes most of a short run.
AS_SLOW_CODE = "protocol.locating_seconds=0.01"
GOOD, BAD = "0 (plain decoding) to 64", "outside 0..64"


@dataclass(frozen=True)
class Case:
    """Arguments, and what the message must say: the key, the value and a remedy."""

    reason: str
    arguments: tuple[str, ...]
    says: tuple[str, ...]
    needs_model: bool = False
    files: dict[str, str] = field(default_factory=dict)


HEADER = {
    **{"specbench_trace": 1, "target": "T", "draft": "D"},
    "sampler": {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
}
TEXT = {"prompt_id": "a", "token_ids": [5, 6], "target_logprobs": [-1.0, -2.0], "draft_logprobs": [-1.5, -1.0]}
TRACE = {"trace.jsonl": f"{json.dumps(HEADER)}\n{json.dumps(TEXT)}\n"}
LIKELIER = TEXT | {"target_logprobs": [-4.0, -9.0], "draft_logprobs": [-0.1, -0.1]}
SWAPPED = {"trace.jsonl": f"{json.dumps(HEADER)}\n{json.dumps(LIKELIER)}"}
REPLAY = ("protocol=replay", "protocol.trace=trace.jsonl")
LOOKUP, UNSURE = "drafter=prompt_lookup", ("drafter.policy=probability", "drafter.threshold=0.4")
OWN, ECHO = ("--config-dir", "conf"), {"conf/drafter/echo.yaml": "_target_: echo.Echo\nlag: 12\n"}
CUT_OFF = {"p.jsonl": '{"prompt": "a"}\n\n{"prompt": \n'}
BAD_INPUT = [
    # Hydra's own messages
    Case("a text for a list of texts", ("sampler.stop=abc",), ("sampler.stop=abc", "It takes a list: write key=[a,b]")),
    Case("unknown key of a component", (LOOKUP, "drafter.longst=3"), ("drafter.longst=3", "mean drafter.longest?")),
    Case("key of a component without any", ("verifier=masked", "verifier.foo=1"), ("has no key foo. It has none.",)),
    Case("unknown key of one's own", (*OWN, "drafter=echo", "drafter.lagg=3"), ("drafter.lagg=3",), files=ECHO),
    Case("a command behind a flag", (*OWN, "list", "drafter"), ("argument=list: no key=value",), files=ECHO),
    Case("entry of a mapping", ("source=openvino", "source.target=x", "source.properties={A: b}"), ("'++source",)),
    Case("key of another choice", ("drafter.longest=3",), ("no key longest. drafter=prompt_lookup",)),
    Case("unknown choice", ("verifier=blok",), ("verifier=blok: no such choice. Did you mean block?", "verifier has ")),
    Case("one of several choices", ("verifier=naive,nonsense",), ("verifier=nonsense: no such choice.", "masked")),
    Case("unknown experiment", ("+exp=gama_sweep",), ("+exp=gama_sweep: no such choice. Did you mean gamma_sweep?",)),
    Case("an interpolation of nothing", ("protocol=replay", "drafter=${nope}"), ("drafter=${nope}",)),
    Case("wrong type", ("gamma=abc",), ("gamma=abc", "could not be converted to Integer")),
    # Numbers
    Case("gamma below 0", ("gamma=-1",), ("gamma=-1", BAD, GOOD)),
    Case("a stop string where no text is", ("protocol=latency", "sampler.stop=[x]"), ("sampler.stop=['x']",)),
    Case("warm-up without end", ("protocol.warmup=10000000000000000000000",), ("protocol.warmup=1000", "0 to 10000")),
    Case("rounds without end", ("protocol.max_rounds=1000000000",), ("max_rounds=1000000000", "from 1 to 10000")),
    Case("no rounds", ("protocol.rounds=0",), ("protocol.rounds=0", "Use a whole number from 1")),
    Case("draws no number", ("protocol.check.draws=abc",), ("protocol.check.draws=abc", "Use a whole number from 0")),
    Case("no flag", ("protocol.together=2",), ("protocol.together=2: neither true nor false. Use true or false.",)),
    Case("in turn", ("protocol.together=true", "protocol.against=[transformers]"), ("not timed in rounds that jobs",)),
    # The pair
    Case("no target", ("pair=hf",), ("pair.target=???: no value given. Add pair.target=... to the command.",)),
    Case("no draft", ("pair=hf", "pair.target=embedded:target"), ("pair.draft=null: drafter=model",)),
    Case("dtype of no draft", ("pair.draft=null", "pair.draft_dtype=float16"), ("pair.draft_dtype=float16",)),
    Case("no probabilities", ("pair.draft=null", LOOKUP, "protocol=record"), ("drafter=prompt_lookup: has no prob",)),
    Case("drafts of other lengths", (*UNSURE, "protocol=cost"), ("drafter.policy=probability: this protocol",)),
    Case("unknown embedded model", ("pair.target=embedded:big",), ("pair.target=embedded:big", "embedded:target")),
    Case("folder of no user", (*HF, "pair.target='~nobody-here/x'"), ("pair.target=~nobody-here/x", "no such folder")),
    # The workload
    Case("no file given", ("workload=file",), ("workload.path=???: no value given",)),
    Case("malformed line", ("workload=file", "workload.path=p.jsonl"), ("line 3 is not JSON",), files=CUT_OFF),
    Case("longer than the context", ("max_new_tokens=100000",), ("max_new_tokens=100000", "context is", "lower"), True),
    # Tracking, device, dtype
    Case("unknown tracking", ("tracking.mode=nonsense",), ("tracking.mode=nonsense", "Use offline, online, disabled")),
    Case("GPU that is not here", ("device=cuda:99",), ("device=cuda:99", "device=cpu")),
    # Components
    Case("argument of no verifier", ("+verifier.foo=1",), ("verifier=", "foo", "conf/verifier/*.yaml")),
    Case("argument of no check", ("+protocol.check.foo=1",), ("protocol=", "foo", "conf/protocol/*.yaml")),
    Case("no verifier", ("verifier._target_=builtins.dict",), ("verifier=dict: no verifier: it has no verify",)),
    Case("no protocol", ("protocol._target_=builtins.dict",), ("protocol=dict: no protocol: it has no",)),
    Case("no such class", ("verifier._target_=nope.Nope",), ("verifier=", "nope.Nope", "conf/verifier/*.yaml")),
    Case("n-grams of size 0", (LOOKUP, "drafter.longest=0"), ("drafter.longest=0", "whole number from 1")),
    Case("trees for a verifier of chains", ("drafter=tree",), ("drafter drafts trees", "Use verifier=tree")),
    Case("trees where chains alone are known", ("drafter=tree", "verifier=tree", "protocol=cost"), ("drafter=tree:",)),
    Case("unset variable", ("workload.path=${oc.env:NOT_SET}",), ("NOT_SET", "workload.path")),
    # Traces
    Case("no trace", ("protocol=replay",), ("protocol.trace=???: no value given. Add protocol.trace=...",)),
    Case("trace of another sampler", (*REPLAY, "sampler=chat"), ("sampler.temperature=0.7",), files=TRACE),
    Case("number as a trace", ("protocol=replay", "protocol.trace=2024"), ("protocol.trace=2024: not a path",)),
    Case("gammas no list", (*REPLAY, "protocol.gammas=3"), ("protocol.gammas=3", "such as [1,2,4]"), files=TRACE),
    Case("gamma twice", (*REPLAY, "protocol.gammas=[3,3]"), ("protocol.gammas=[3, 3]", "repeated"), files=TRACE),
    Case("power of 1", (*REPLAY, "protocol.power=1"), ("protocol.power=1", "0.9 for power"), files=TRACE),
    Case("empty plan", (*REPLAY, "protocol.planned=[0]"), ("protocol.planned=[0]", "Add one above 0"), files=TRACE),
    Case("no drafts to try", (*REPLAY, "protocol.policies=[0]"), ("protocol.policies=[0]", "or give []"), files=TRACE),
    Case("another pair's trace", (*REPLAY, "pair=smollm2"), ("pair=", "of target T and draft D", "Leave"), files=TRACE),
    Case("no texts", ("protocol=record", "protocol.samples=0"), ("protocol.samples=0", "Use a whole number from 1")),
    Case("decoded but not replayed", ("protocol=replay_check", "protocol.gammas=[1]"), ("[2, 4, 8] are not replayed",)),
    Case("prediction of nothing", ("protocol=predict", "protocol.gammas=[0]", "protocol.decoded=[0]"), ("gammas=[0]",)),
    Case("batch whose cost is not measured", ("protocol=predict", "batch_size=32"), ("batch_size=32", "cost.batches")),
    # The pair is not in the hub cache: what is wrong with the protocol is said before it is looked for.
    *(
        Case(
            f"{name} with a verifier that has no replay",
            (*HF, "pair.target=no-such-owner/model", f"protocol={name}", "verifier=control/coupled"),
            ("verifier=control/coupled", "has no replay", "token or block"),
        )
        for name in ("predict", "replay_check")
    ),
    *(
        Case(f"{name} without a draft model", (f"protocol={name}", "drafter=prompt_lookup"), ("drafter=model",))
        for name in ("predict", "replay_check")
    ),
    Case("costs beyond the context", ("protocol=cost", "protocol.contexts=[5000]"), ("contexts=[5000]", "Lower"), True),
    # Conditions that a protocol would ignore, by key and value, with what to do instead
    *(
        Case(
            f"{name} with {override}", (f"protocol={name}", override), (f"{override}: protocol={name} would ignore it",)
        )
        for name, override in (
            ("record", "verifier=block"),
            ("cost", "gamma=3"),
            ("exactness", "workload.limit=3"),
        )
    ),
    Case(
        "several texts judged", ("protocol=judge", "source=llama_server", "sampler.n=2"), ("Each text is a request of",)
    ),
    Case("replay of specbench's verifier", (*REPLAY, "verifier=block"), ("verifier=block: ",), files=TRACE),
    Case("replay of a batch", (*REPLAY, "batch_size=3"), ("batch_size=3: protocol=replay would", "Nothing is decoded")),
    Case("gamma without calls", ("protocol=exactness", "protocol.calls=0", "gamma=3"), ("gamma=3: ",)),
    # Folders and experiments
    Case(
        "folder that cannot be made",
        ("hydra.sweep.dir=/proc/nope",),
        ("hydra.sweep.dir=/proc/nope", "). Choose another folder by hydra.sweep.dir."),
    ),
    Case(
        "default folder not writable",
        (),
        ("./outputs", "(Not a directory). Choose another folder by hydra.sweep.dir."),
        files={"outputs": "a file"},
    ),
    Case("folder above", ("hydra.sweep.dir=..",), ("hydra.sweep.dir=..", "beside your own files")),
    Case("folder with rows", ("hydra.sweep.dir=old",), ("holds results.parquet",), files={"old/results.parquet": ""}),
    Case("resume nothing", ("resume=latest",), ("no sweep under ./outputs", "without resume")),
    Case("more threads than cores", ("threads=1000",), ("threads=1000", "this machine has")),
    Case("no job", ("hydra.sweeper.max_batch_size=-1",), ("max_batch_size=-1: must be 1 or more", "null for all")),
    Case("jobs in folders", ("hydra.job.chdir=true",), ("hydra.job.chdir=True: a job would run in", "Leave it out")),
    Case("no such configuration", ("-cn", "x"), ("--config-name=x: no such configuration. Leave it out",)),
]
RESULTS, OFF = "Results: ", ("workload.limit=3", "tracking.mode=disabled")
UNCHECKED, RECORD = (*QUICK, "protocol.check.draws=0"), ("protocol=record", "protocol.samples=2")
GOOD_INPUT = [
    Case("a folder of configurations, by the short flag", (*QUICK, *QUICK_CHECK, "-cd", "."), (RESULTS,), True),
    Case("the name of the configuration", (*QUICK, *QUICK_CHECK, "-cn=config"), (RESULTS,), True),
    Case(
        "a target alone",
        (
            *("pair=hf", "pair.target=embedded:target", "drafter=layer_skip", "drafter.layers=11"),
            *("drafter.temperature=0.8", "protocol.max_rounds=2", *QUICK, "protocol.check.draws=0"),
        ),
        ("times plain decoding", RESULTS),
        needs_model=True,
    ),
    Case(
        "lines with parameters of their own",
        (*QUICK[:1], *QUICK[2:], "protocol.check.draws=0", "workload=file", "workload.path=log.jsonl"),
        ("1 with sampling parameters of their own", RESULTS),
        True,
        {"log.jsonl": '{"prompt": "import os", "temperature": 0}\n{"text": "import re", "max_tokens": 2}\n'},
    ),
    Case("greedy", (*UNCHECKED, "sampler=greedy", "verifier=block"), ("tokens a step", RESULTS), True),
    Case("recording", (*TINY, *RECORD, "sampler=chat"), ("tokens recorded in", RESULTS), True),
    Case("timing steps", (*OFF, *TINY_COST, "protocol=cost"), ("a plain step takes", RESULTS), True),
    Case(
        "replay sweep",
        (
            *(*TINY, "+exp=replay_sweep", "sampler.temperature=1.0"),
            *("protocol.gammas=[1,2,5]", "protocol.decoded=[2,5]", "protocol.warmup=0"),
        ),
        ("3 draft lengths replayed, 2 decoded", "Report: outputs/replay_sweep/"),
        needs_model=True,
    ),
    Case(
        "predicted speedup",
        (
            *(*TINY, *(override.replace("protocol.", "protocol.cost.") for override in TINY_COST)),
            *("+exp=predicted_speedup", "verifier=masked", "batch_size=1,2"),
            *("protocol.gammas=[1,2]", "protocol.decoded=[2]", "protocol.warmup=0"),
        ),
        ("recommended: gamma ", "; best measured: gamma ", "Report: outputs/predicted_speedup/"),
        needs_model=True,
    ),
    Case("replay of an engine's log-probabilities", REPLAY, ("2 tokens of 1 texts replayed", RESULTS), files=TRACE),
    Case("replay of gamma 0", (*REPLAY, "protocol.gammas=[0]"), ("target T, draft D", "1.00 tokens a"), files=TRACE),
    Case("columns swapped", REPLAY, ("log_q swapped", RESULTS), files=SWAPPED),
    Case("plain decoding", (*QUICK, *QUICK_CHECK, "gamma=0"), (RESULTS,), True),
    Case("a single token", (*QUICK, *QUICK_CHECK, "max_new_tokens=1"), (RESULTS,), True),
    Case(
        "outputs elsewhere",
        (*QUICK, *QUICK_CHECK, "hydra.sweep.dir=else/where"),
        ("Results: else/where/results.parquet",),
        needs_model=True,
        files={"outputs": "a file"},
    ),
]
SWEEP = Case("sweep with a bad job", ("-m", *QUICK, *QUICK_CHECK, "gamma=-1,1"), (), True)


class Buggy:
    """A verifier with a bug."""

    rule, lossless = "token", True

    def verify(self, *_: object) -> None:
        raise KeyError("a bug")


CLASSES = f"{__name__}.Buggy,specbench.rules.token.naive.NaiveVerifier"
BUG = Case("sweep with a bug", ("-m", *QUICK, *QUICK_CHECK, f"verifier._target_={CLASSES}"), (), True)
# Each flag of Hydra, with what it prints.
FLAGS = [
    Case("keys of a choice", ("drafter=layer_skip", "--cfg", "job", "-p", "drafter"), ("Drafter\nlayers: 0.25",)),
    Case("the same before", ("--package", "sampler", "-c", "job", "sampler=top_k"), ("top_k: 50",)),
    Case("help of a choice", ("drafter=layer_skip", "--help"), ("layers: 0.25", "Configuration groups")),
    Case("resolved", ("--cfg", "all", "--resolve"), ("outputs/adhoc/", "gamma: 4")),
    Case("of Hydra", ("--hydra-help",), ('eval "$(specbench -sc install=bash)"',)),
    Case("search path", ("--info", "searchpath"), ("Config search path",)),
    Case("defaults", ("-i", "defaults-tree", "+exp=smoke"), ("exp: smoke",)),
    Case("completion in bash", ("-sc", "install=bash"), ("-F hydra_bash_completion specbench",)),
    Case("completion in zsh", ("--shell-completion", "install=zsh"), ("hydra_bash_completion specbench",)),
    Case("completion in fish", ("-sc", "install=fish"), ("specbench",)),
    Case("a choice of the user's own", ("--config-dir", ".", "verifier=mine", "--cfg", "job"), ("_target_: mine.Mine",),
         files={"verifier/mine.yaml": "_target_: mine.Mine\n"}),
]  # fmt: skip
HELP = Case(
    "help",
    ("--help",),
    (
        *("report [FOLDER]", "resume=", "paper", "pages", "convert", "gamma_sweep", "How many tokens", "naive"),
        "prompt_lookup",
    ),
)
