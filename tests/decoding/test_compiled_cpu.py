"""engine=compiled on a CPU writes the texts and step logs of the eager engine, and names what it lacks."""

import contextlib
import dataclasses
import errno
import os
from collections.abc import Callable

import pytest
import torch
from torch.nn.functional import linear

from specbench.core.errors import ConfigError, ModelError
from specbench.decoding import Decoder
from specbench.decoding.engines import EagerEngine, Requirements
from specbench.decoding.engines.compiled_cpu import CompiledCpuEngine
from specbench.drafters.model import ModelDrafter
from specbench.drafters.tree import TreeDrafter
from specbench.extras.compiled.compiling import compile_model
from specbench.extras.compiled.engine import CompiledEngine
from specbench.kernels import cpu_product
from specbench.models import CachedModel, compiling_cpu, packed, recompiling
from specbench.models.compiling_cpu import prepared_capacities
from specbench.rules.block.masked import BlockVerifier
from specbench.rules.token.masked import MaskedVerifier
from specbench.rules.token.tree import TreeVerifier
from tests.decoding.test_decoding import make_requests
from tests.decoding.test_engines import logs
from tests.helpers import families
from tests.helpers.cases import CPU, decoder
from tests.helpers.toy import toy_decoder, toy_pair, toy_requests


def compiles(test):
    """Without warnings of PyTorch's own, and without checks of shapes, which would be compiled too."""
    quiet = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
    return quiet(pytest.mark.usefixtures("unchecked")(test))


@compiles
def test_compiled_steps_write_what_eager_ones_do(pair):
    """Plain and speculative, with requests that come and end in two rows, and later a text that needs more memory."""
    toy, requests = toy_pair(pair), toy_requests((5, 2, 9, 7, 3))
    longer = [dataclasses.replace(request, max_new_tokens=45) for request in requests[:1]]
    for gamma in (3, 0):
        compiled = toy_decoder(toy, engine=CompiledEngine(), gamma=gamma)
        eager = toy_decoder(toy, gamma=gamma)
        assert isinstance(compiled.engine, CompiledCpuEngine)
        assert logs(compiled.run(requests, 2)) == logs(eager.run(requests, 2))
        if gamma:
            assert logs(compiled.run(longer)) == logs(eager.run(longer))
        assert compiled.engine.preparation > 0
        assert compiled.engine.name == "compiled"


@pytest.mark.thorough
@compiles
def test_trees_through_torch_compile_write_what_eager_ones_do(pair):
    """tests/models/test_cpu_model.py has those that C++ passes."""
    toy, requests = toy_pair(pair), toy_requests((5, 2, 9))
    compiled = toy_decoder(toy, "tree", CompiledEngine())
    assert compiled.components.target.native is None
    assert logs(compiled.run(requests, 2)) == logs(toy_decoder(toy, "tree").run(requests, 2))


@compiles
def test_trees_after_plain_decoding_write_what_eager_ones_do(pair):
    """Plain decoding packs the target's cache for C++ code, and trees move its tokens; both share it in a run."""
    toy, requests, texts = toy_pair(pair, "llama"), toy_requests((5, 2, 9)), []
    for engine in (CompiledEngine(), EagerEngine()):
        target = CachedModel(toy.target, toy.vocab_size, "target")
        Decoder(target, None, None, 0, toy.stop_ids, engine, toy.tokenizer).run(requests, 2)
        drafter = TreeDrafter([2, 1]).bind(toy, target)
        trees = Decoder(target, drafter, TreeVerifier(), 2, toy.stop_ids, engine, toy.tokenizer)
        texts.append(logs(trees.run(requests, 2)))
    assert texts[0] == texts[1]


@compiles
@pytest.mark.thorough
def test_a_later_job_finds_its_models_compiled(pair):
    """Other decoders of the same models, of another gamma and batch, compile nothing."""
    toy, requests = toy_pair(pair), toy_requests((5, 2))
    toy_decoder(toy, engine=CompiledEngine(), gamma=2).run(requests[:1])
    torch._dynamo.utils.counters.clear()
    assert logs(toy_decoder(toy, engine=CompiledEngine(), gamma=4).run(requests[:1]))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 0


@compiles
def test_a_model_is_compiled_for_many_kinds_of_passes_and_a_user_s_function_for_as_few_as_before():
    def kinds_of(function, most):
        """How many kinds of inputs it is compiled for before it fails or goes on without compiling."""
        torch._dynamo.utils.counters.clear()
        with contextlib.suppress(torch._dynamo.exc.FailOnRecompileLimitHit):
            for size in range(most):
                function(torch.zeros(size + 2))
        return torch._dynamo.utils.counters["stats"]["unique_graphs"]

    with torch._dynamo.config.patch(recompile_limit=2):  # monkeypatch would take the limit away
        options = {"dynamic": False, "backend": "eager"}  # functions of different lines: code keeps what is compiled
        ours = recompiling.compiled(lambda x: x + 1, 5, **options)
        users = torch.compile(lambda x: x + 1, **options)
        assert (kinds_of(ours, 5), kinds_of(users, 5)) == (5, 2)
        with pytest.raises(torch._dynamo.exc.FailOnRecompileLimitHit):
            ours(torch.zeros(100))
        assert torch._dynamo.config.recompile_limit == 2
        assert not torch._dynamo.config.fail_on_recompile_limit_hit


@compiles
@pytest.mark.parametrize("gamma", [0, 2])
def test_a_pass_before_there_is_a_cache_leaves_later_passes_their_cache(pair, gamma):
    """A prompt of one token feeds nothing before its first step, which therefore allocates the cache: of a draft with
    the target's first layers, their part first."""
    toy = toy_pair(pair)
    for lengths in ((1,), (5,)):
        requests = toy_requests(lengths)
        compiled = toy_decoder(toy, "layer_skip", CompiledEngine(), gamma).run(requests)
        assert logs(compiled) == logs(toy_decoder(toy, "layer_skip", gamma=gamma).run(requests))


def test_models_are_compiled_for_more_kinds_of_passes_than_a_run_has(pair, monkeypatch):
    limits = []
    monkeypatch.setattr(recompiling, "compiled", lambda function, kinds, **_: limits.append(kinds) or function)
    compiling_cpu._compiled(torch.nn.Linear(1, 1))
    compile_model(CachedModel(toy_pair(pair).target, 61, "target"), early=False)
    assert limits == [64, 256]


def test_a_job_after_one_of_long_texts_reads_no_more_than_alone(pair):
    """Its times would depend on the jobs before. A capacity that is not far off is compiled for already."""
    capacities = []
    for earlier in (None, 64, 128, 4096):
        toy = toy_pair(pair, "llama")
        if earlier is not None:
            prepared_capacities[toy.target] = {earlier}
        engine = toy_decoder(toy, engine=CompiledEngine(), gamma=0).engine
        engine.reserve(1, 60, 1)
        capacities.append(engine.components.target.capacity)
    assert capacities == [128, 64, 128, 128]


@compiles
@pytest.mark.parametrize(
    ("dtype", "gamma", "verifier"),
    [
        ("pair", 4, MaskedVerifier()),
        ("pair", 4, BlockVerifier()),
        ("pair", 0, None),
        pytest.param("exact", 4, MaskedVerifier(), marks=pytest.mark.thorough),
    ],
)
def test_the_embedded_pair_writes_the_same_texts(dtype, gamma, verifier, request, thorough):
    """In float64 but for roundings of 1e-14. In float32 other sums may move a token, and moved none of these."""
    pair = request.getfixturevalue(dtype)
    requests = make_requests(pair, 6 if thorough else 3)
    compiled = decoder(pair, gamma, verifier=verifier, engine=CompiledEngine())
    assert logs(compiled.run(requests, 1)) == logs(decoder(pair, gamma, verifier=verifier).run(requests, 1))


def test_weights_that_change_are_packed_again(pair):
    cpu_product.load()
    model = CachedModel(toy_pair(pair).target, pair.vocab_size, "target").model
    x = torch.randn(1, 2, 32)
    before = {name: parameter.clone() for name, parameter in model.state_dict().items()}
    packed.install(model)
    assert model.state_dict().keys() == before.keys()
    layer = next(module for module in model.modules() if isinstance(module, packed.PackedLinear))
    with torch.no_grad():
        layer.weight.mul_(2)
    packed.install(model)
    torch.testing.assert_close(layer(x), linear(x, layer.weight))


def refused(**settings):
    with pytest.raises(ConfigError) as error:
        CompiledEngine(**settings).resolve(Requirements(CPU, ModelDrafter(), None))
    return str(error.value)


def test_a_missing_compiler_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "CXX=no-such-compiler is no program" in refused()
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path))
    message = refused()
    assert "no C++ compiler found" in message
    assert "engine=eager" in message


def test_missing_headers_of_python_are_named(monkeypatch, tmp_path):
    monkeypatch.setattr(cpu_product.sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    assert "python3-dev" in refused()


def test_a_cache_folder_that_cannot_be_written_is_named(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "file" / "cache"))
    message = refused()
    assert message.startswith("TORCHINDUCTOR_CACHE_DIR=")
    assert "Name a folder with room" in message


def test_a_full_cache_folder_is_named(monkeypatch, tmp_path):
    class Full:
        def __init__(self, **_):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(cpu_product.tempfile, "TemporaryFile", Full)
    assert "(No space left on device)" in refused()


@pytest.fixture
def compiler(monkeypatch, tmp_path) -> Callable[[str], str]:
    """Names a compiler that is a shell script, with an empty folder for what it compiles, and returns its path."""

    def write(script: str) -> str:
        path = tmp_path / "c++"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setenv("CXX", str(path))
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
        return str(path)

    return write


@pytest.fixture
def build(compiler) -> Callable[[str], None]:
    """Builds the library with a compiler that is a shell script."""

    def run(script: str) -> None:
        compiler(script)
        cpu_product.load.__wrapped__()

    return run


def test_a_compiler_that_fails_is_named(build):
    with pytest.raises(ModelError, match="cannot build cpu_model.cpp: .*wrong instruction.*CXX"):
        build("echo 'x.cpp:3: fatal error: wrong instruction' >&2; exit 1")


def test_a_library_that_cannot_be_loaded_is_named(build):
    """Such as one that another container built into a shared cache folder."""
    with pytest.raises(ModelError, match=r"specbench_\w+\.so cannot be loaded \(.*\)\. Remove this file"):
        build('for last; do :; done; echo garbage > "$last"')


@compiles
def test_a_model_that_does_not_compile_is_named(pair, monkeypatch):
    toy = toy_pair(pair)
    layer = toy.target.model.layers[0].mlp

    def forward(x):
        torch._dynamo.graph_break()
        return x

    monkeypatch.setattr(layer, "forward", forward)
    with pytest.raises(ModelError, match=r"the models cannot be compiled: .*\. Use engine=eager"):
        toy_decoder(toy, engine=CompiledEngine(), gamma=0).run(toy_requests((5,)))


@compiles
def test_what_the_compiler_of_a_model_prints_is_told(pair, compiler):
    cpu_product.load()  # by a compiler that works; the library stays loaded
    version = f'[ "$1" = --version ] && exec {cpu_product.find_compiler()} "$1"'
    path = compiler(f"{version}\necho 'x.cpp:3: fatal error: wrong instruction' >&2; exit 1")
    decoder = toy_decoder(toy_pair(pair), engine=CompiledEngine(), gamma=0)
    message = r"cannot be compiled: x.cpp:3: .* wrong instruction\. Name another .* CXX"
    # PyTorch reads CXX once.
    with torch._inductor.config.patch({"cpp.cxx": (path,)}), pytest.raises(ModelError, match=message):
        decoder.run(toy_requests((5,)))


@pytest.mark.parametrize("kind", [ValueError, RuntimeError])
def test_an_error_of_a_user_s_verifier_is_no_compiler_s(pair, kind):
    class Wrong(MaskedVerifier):
        def verify(self, draft, target, streams):
            raise kind("of mine")

    toy = toy_pair(pair, "llama")
    with pytest.raises(kind, match="of mine"):
        decoder(toy, 3, verifier=Wrong(), engine=CompiledCpuEngine()).run(toy_requests((5,)))


def test_the_first_pass_that_returns_hidden_states_is_not_compiled(monkeypatch):
    """transformers installs hooks in it, under a lock. A prompt fills the cache before, through the model itself."""
    compiled = []

    def call(model, **inputs):
        compiled.append(vars(model.model)["_output_capturing_hooks_installed"])
        return model(**inputs)

    monkeypatch.setattr(compiling_cpu, "_compiled", lambda model: call)
    cached = CachedModel(families.made("llama"), families.VOCABULARY, "target")
    compiling_cpu.compile_on_cpu(cached, features=True)
    cached.start([[1, 2, 3]], 16, ("last",))
    cached.show(1)
    cached.extend(torch.tensor([[3]]), torch.tensor([1]), features=("last",))
    assert compiled == [True]
