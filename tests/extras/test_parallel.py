"""A target in two shards decodes what the whole one does, on two processes of the CPU."""

import copy

import pytest
import torch
import transformers
from packaging.version import Version

from specbench.benchmark.weights import weight_bytes
from specbench.core.errors import ModelError
from specbench.core.machine import ranks
from specbench.core.machine.files import Origin
from specbench.decoding import Decoder
from specbench.decoding.engines.eager import EagerEngine
from specbench.decoding.engines.static import StaticEngine
from specbench.drafters.model import ModelDrafter
from specbench.drafters.tree import TreeDrafter
from specbench.extras import parallel
from specbench.extras.parallel import sharding
from specbench.models import CachedModel, load_pair
from specbench.models.random_weights import RandomModel
from specbench.models.weights import load_weights, local
from specbench.rules.token.masked import MaskedVerifier
from specbench.rules.token.tree import TreeVerifier
from tests.decoding.test_decoding import make_requests
from tests.decoding.test_engines import logs
from tests.helpers import families
from tests.helpers.cases import bound, decoder
from tests.helpers.forked_ranks import on_ranks

OLDER = Version(transformers.__version__) < Version(parallel.OLDEST)
sharded = pytest.mark.skipif(OLDER, reason=f"transformers older than {parallel.OLDEST}")
NO_FORKS = "forked ranks cannot use CUDA; test_parallel_on_gpus.py has ranks on GPUs"
forked = pytest.mark.skipif(torch.cuda.is_available(), reason=NO_FORKS)
# Sums over shards round otherwise: so far from a whole model's logits, in units of their spread. Measured, over the
# embedded target and all of families.py that transformers has a plan for: at most 3e-6.
BOUND = 1e-4
# Norms of heads; windows; experts; heads that every rank has; biases.
FAMILIES = ("qwen3", "gemma3", "mixtral", "phi3", "gpt-neox")


def runs(pair):
    """Texts and step logs of a chain and a tree, eagerly and in fixed shapes, rows taking turns."""
    requests, outcomes = make_requests(pair, 3, max_new_tokens=8), []
    for drafter, verifier, engine in (
        (ModelDrafter(), MaskedVerifier(), EagerEngine()),
        (ModelDrafter(), MaskedVerifier(), StaticEngine()),
        (TreeDrafter([2, 1]), TreeVerifier(), StaticEngine()),
    ):
        made = decoder(pair, drafter=drafter, verifier=verifier, engine=engine)
        outcomes.append(logs(made.run(requests, 2)))
    return outcomes


def logits(model):
    """Of two requests that are extended, cut back and extended again."""
    engine = CachedModel(model, 64, "target")
    engine.start([[3, 5, 8, 13, 21, 34, 55, 7, 9], [2, 4]], 30)
    first = engine.extend(torch.tensor([[1, 2, 3], [4, 5, 6]]), torch.tensor([3, 2])).logits[:, :2].clone()
    engine.truncate(torch.tensor([9, 3]))
    return torch.cat([first, engine.extend(torch.tensor([[7, 8], [9, 10]]), torch.tensor([2, 2])).logits], dim=1)


def saved(name, folder):
    """A tiny model of a family of families.py, in a folder, and its configuration."""
    config = families.CONFIGS[name]()
    config.vocab_size = 64  # which divides
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for weight in model.parameters():
            if not weight.any():
                weight.normal_(0, 0.5)  # a bias of 0 may be added as often as one likes
    model.save_pretrained(folder)
    return folder, config


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Tiny models of several families: (folder, configuration)."""
    return {name: saved(name, tmp_path_factory.mktemp(name)) for name in FAMILIES}


class SkewedOnOne(MaskedVerifier):
    """Draws otherwise on rank 1, for the request in row 1."""

    def verify(self, draft, target, streams):
        verification = super().verify(draft, target, streams)
        if ranks.rank() == 1 and len(verification.token_ids) > 1:
            verification.token_ids[1, 0] ^= 1
        return verification


@pytest.fixture(scope="module")
def seen(checkpoints, thorough):
    """The results of two ranks; the tests below share them, because starting processes takes seconds."""

    def work(rank):
        results = {}
        mine = load_pair("embedded:target", "embedded:draft", device="cpu", parallel="tensor")
        target = CachedModel(mine.target, mine.vocab_size, "target")
        results["runs"] = runs(mine) if thorough else None
        results["bytes"] = weight_bytes(target), weight_bytes(CachedModel(mine.draft, mine.vocab_size, "draft"))
        target.start([[1, 2]], 8)
        results["heads"] = target._cache.layers[0].keys.shape[1]
        broken = Decoder(target, bound(ModelDrafter(), mine), SkewedOnOne(), 3, mine.stop_ids, StaticEngine())
        try:
            broken.run(make_requests(mine, 2, max_new_tokens=8))
        except ModelError as error:
            results["skewed"] = str(error)
        for name, (folder, config) in checkpoints.items():
            source = Origin("pair.target", name, "")
            sharding.check_divisible(config, source)
            shards = load_weights(folder, copy.deepcopy(config), torch.float32, source, **sharding.loading())
            results[name] = logits(shards)
        assert target.compare_ranks is not None
        values, tokens = torch.ones(3, 2, 5), torch.ones((3, 2), dtype=torch.int64)
        if rank == 1:
            values[1, 1, 3] += 1e-7
            tokens[2] = torch.tensor([0, 2])
        results["differing"] = target.compare_ranks(values, tokens).tolist()
        tiny = parallel.load(RandomModel.opened("pair.target", "random:tiny"), torch.float32, torch.device("cpu"))
        layer = tiny.model.layers[0]
        parts = layer.mlp.up_proj.weight, layer.input_layernorm.weight
        results["parts"] = [local(part).detach().clone() for part in parts]
        results["random"] = logits(tiny)
        return results

    return on_ranks(work)


@pytest.mark.thorough
@sharded
@forked
def test_texts_and_step_logs_are_those_of_the_whole_model(seen, pair):
    """A key head too many in the cache, a sum that is missing or a bias added twice moves a token."""
    whole = runs(pair)
    assert [result["runs"] == whole for result in seen] == [True, True]


@sharded
@forked
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_of_families_are_near_those_of_the_whole_model(seen, checkpoints, name):
    folder, config = checkpoints[name]
    whole = logits(load_weights(folder, copy.deepcopy(config), torch.float32, Origin("pair.target", name, "")))
    assert torch.equal(seen[0][name], seen[1][name])
    assert (seen[0][name] - whole).abs().max() < BOUND * whole.std()


@sharded
@forked
def test_each_rank_has_its_part_alone(seen, pair):
    """Of two key heads one; half of the target's bytes but for its norms; the whole draft."""
    whole = sum(parameter.numel() for parameter in pair.target.parameters()) * 4
    draft = sum(parameter.numel() for parameter in pair.draft.parameters()) * 4
    for result in seen:
        assert result["heads"] == 1
        assert result["bytes"][0] == pytest.approx(whole / 2, rel=0.01)
        assert result["bytes"][1] == draft


@sharded
@forked
def test_random_shards_differ_and_make_one_model(seen):
    """One seed on all ranks would make all shards the same; different norms on two ranks would be no model."""
    (up, norm), (other_up, other_norm) = seen[0]["parts"], seen[1]["parts"]
    assert up.shape == other_up.shape == (64, 64)
    assert not torch.equal(up, other_up)
    assert up.std() == pytest.approx(0.02, rel=0.1)
    assert torch.equal(norm, other_norm)
    assert torch.equal(seen[0]["random"], seen[1]["random"])
    assert not torch.equal(seen[0]["random"][..., :32], seen[0]["random"][..., 32:])


@sharded
@forked
def test_ranks_that_differ_are_found_out_on_all_of_them(seen, pair):
    """By one bit of a logit, or one token; that request alone is named."""
    assert seen[0]["differing"] == seen[1]["differing"] == [False, True, True]
    message = seen[0]["skewed"]
    assert seen[1]["skewed"] == message
    name = make_requests(pair, 2)[1].name
    assert message.startswith("parallel=tensor: ")
    assert f"prompt {name!r} at step 0" in message
    assert "SkewedOnOne" in message
