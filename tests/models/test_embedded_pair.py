"""Training a pair of one's own: what is refused before anything is read, and how a stopped training goes on."""

from __future__ import annotations

import json
import random
from itertools import islice
from pathlib import Path

import pytest
import torch

import specbench
from experiments.embedded_pair import corpus, muon, optimise, own_samples
from experiments.embedded_pair import train as training
from specbench.core.machine import ranks
from tests.helpers import checkpoints
from tests.helpers.forked_ranks import on_ranks

TINY = {"tiny": (1, 32, 1, 1, 64), "small": (2, 32, 1, 1, 64)}
SHORT = ("--target", "tiny", "--target-steps", "2", "--draft-steps", "2", "--sequences", "2", "--context", "32")


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shapes that train in no time, on the CPU."""
    monkeypatch.setattr(training, "SHAPES", TINY)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch, "set_float32_matmul_precision", lambda _: None)  # which other tests would inherit


def texts(folder: Path, count: int) -> Path:
    """Different texts, of which a hash keeps some apart; a hidden file and a too short one are left out."""
    rng = random.Random(0)
    (folder / "deep").mkdir(parents=True)
    for number in range(count):
        words = " ".join(rng.choice(("alpha", "beta", "gamma", "delta")) for _ in range(60))
        (folder / "deep" / f"{number}.txt").write_text(f"{number} {words}\n")
    (folder / ".hidden.txt").write_text("hidden\n" * 60)
    (folder / "short.txt").write_text("short")
    return folder


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (("--drafts", "tiny,9x9"), "--drafts: '9x9' is no shape. Use some of tiny,small"),
        (("--vocab-size", "256"), "--vocab-size: 256 is outside 257 to 32768"),
        (("--draft-steps", "-1"), "--draft-steps: -1 is below 1"),
        (("--own-samples", "-1"), "--own-samples: -1 is below 0"),
        (("--tokenizer", "full/target/no"), "--tokenizer: full/target/no has no tokenizer.json"),
        (("--tokenizer", "pair", "--teacher", "pair"), "--teacher: not allowed with argument --tokenizer"),
        (("--learning-rate", "nan"), "--learning-rate: nan is not above 0"),
        (("--teacher", "full/target"), "--teacher: full/target is a model of type gpt2, and llama is needed"),
        (("--out", "full"), "--out: full/target is there already and would be replaced; give another folder, or"),
        (("--out", "file/pair"), "--out: file/pair cannot be made (Not a directory)"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_arguments_are_named_before_anything_is_read(tiny, argv, says, monkeypatch, tmp_path, capsys):
    """A shape that is not known stopped the drafts, after the target had been trained."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(training, "collect", None)
    (tmp_path / "full" / "target").mkdir(parents=True)
    (tmp_path / "full" / "target" / "config.json").write_text('{"model_type": "gpt2"}')
    (tmp_path / "full" / "target" / "tokenizer.json").touch()
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as ended:
        training.main(["--out", "pair", "--drafts", "tiny", *SHORT, *argv])
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


def test_processes_divide_a_step_evenly(tiny, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(ranks, "size", lambda: 4)
    with pytest.raises(SystemExit):
        training.main(["--out", str(tmp_path), "--drafts", "tiny", *SHORT])
    assert "--sequences: 2 cannot be divided among 4 processes" in capsys.readouterr().err


def test_a_corpus_is_every_text_below_its_folder(tmp_path):
    collection = corpus.collect(folder=texts(tmp_path / "mine", 300))
    assert (len(collection.train) + len(collection.held_out), collection.sources) == (300, ["mine"])
    assert 0 < len(collection.held_out) < 15
    assert not set(collection.train) & set(collection.held_out)


@pytest.mark.parametrize(
    ("count", "context", "says"),
    [(3, "32", "--corpus: 3 different texts, 0 of them kept apart"), (300, "4096", "--context: 4096 is too long")],
)
def test_a_corpus_that_is_too_small_is_refused(tiny, count, context, says, tmp_path):
    folder = texts(tmp_path / "mine", count)
    argv = ["--out", str(tmp_path / "pair"), "--corpus", str(folder), "--drafts", "tiny", *SHORT, "--context", context]
    with pytest.raises(SystemExit, match=says):
        training.main([*argv, "--vocab-size", "300"])


def test_a_teacher_that_lacks_weights_stops_in_words(tiny, tmp_path):
    """transformers would have made them up, and the drafts learned from noise."""
    folder = checkpoints.tiny(tmp_path / "target")
    assert training.teacher(folder).config.vocab_size == 4096
    checkpoints.first_value(checkpoints.NORM, torch.nan)(folder)
    with pytest.raises(SystemExit, match=f"--teacher=.*: 1 weights hold NaN or infinite values: {checkpoints.NORM}"):
        training.teacher(folder)
    checkpoints.tensors(lambda weights: weights.pop(checkpoints.HEAD))(folder)
    with pytest.raises(SystemExit, match=f"1 weights of the model are not in the files: {checkpoints.HEAD}"):
        training.teacher(folder)


def test_every_second_step_learns_from_texts_of_the_target():
    model = optimise.build(300, *TINY["tiny"], 32)
    stream = torch.tensor([0, 7, 8, 9] * 40, dtype=torch.int16)
    samples = own_samples.sample_texts(model, stream, 3, 16, seed=0)
    assert (samples.shape, samples.dtype) == ((3, 16), torch.int16)
    assert samples[:, :8].tolist() == [[0, 7, 8, 9] * 2] * 3
    assert len(samples[:, 8:].unique()) > 12  # an untrained model writes anything
    crop, rows, again = islice(optimise.alternating(stream, samples, sequences=2, context=30, seed=0), 3)
    assert [tuple(batch.shape) for batch in (crop, rows, again)] == [(2, 31), (4, 16), (2, 31)]
    assert all(row in samples.tolist() for row in rows.tolist())
    assert crop.unique().tolist() == [0, 7, 8, 9]


def test_stacked_matrices_move_as_those_of_torch_do():
    """For tall, wide and square matrices, several of a shape, over steps in which momentum counts."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(8, 24), (24, 8), (8, 8), (8, 24)]
    ours, theirs = ([torch.ones(shape, requires_grad=True) for shape in shapes] for _ in range(2))
    stacked = muon.StackedMuon(ours, lr=0.1, weight_decay=0.5)
    single = torch.optim.Muon(theirs, lr=0.1, weight_decay=0.5, adjust_lr_fn="match_rms_adamw")
    for _ in range(3):
        for mine, other in zip(ours, theirs, strict=True):
            other.grad = torch.randn(mine.shape, generator=generator)
            mine.grad = other.grad.clone()
        stacked.step()
        single.step()
        for mine, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine, other, rtol=0, atol=1e-3)  # updates are bfloat16, of 0.1


@pytest.mark.thorough
def test_processes_share_a_step(monkeypatch):
    """Each begins with the weights of the first and moves by the mean of all gradients."""

    def work(rank: int) -> list[float]:
        torch.distributed.init_process_group("gloo")
        model = torch.nn.Linear(2, 1, bias=False)
        torch.nn.init.constant_(model.weight, rank + 1.0)
        optimise.copy_from_first(model)
        (model.weight * torch.tensor([[1.0, 10.0]]) * (rank + 1)).sum().backward()
        optimise.average_gradients(model)
        assert model.weight.grad is not None
        return [*model.weight.flatten().tolist(), *model.weight.grad.flatten().tolist()]

    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    assert on_ranks(work) == [[1.0, 1.0, 1.5, 15.0]] * 2


def test_a_pair_of_ones_own_is_trained_gone_on_with_and_decodes(tiny, tmp_path):
    out, common = tmp_path / "pair", ["--corpus", str(texts(tmp_path / "mine", 300)), *SHORT, "--vocab-size", "300"]
    training.main(["--out", str(out), "--drafts", "tiny", *common])
    first = json.loads((out / "training.json").read_text())
    further = ["--drafts", "small", "--teacher", str(out / "target"), "--own-samples", "3"]
    training.main(["--out", str(out), *further, *common])
    both = json.loads((out / "training.json").read_text())
    assert both["target_log"] == first["target_log"]  # of the training that went before
    assert both["drafts"]["tiny"] == first["drafts"]["tiny"]
    assert list(both["drafts"]) == ["tiny", "small"]
    greedy = specbench.SamplingParams(temperature=0.0)
    for name in TINY:
        pair = specbench.load_pair(str(out / "target"), str(out / f"draft-{name}"), device="cpu")
        options = {"prompts": ["alpha beta"], "max_new_tokens": 6, "sampling": greedy}
        (text,), (plain,) = (specbench.decode(pair, gamma=gamma, **options) for gamma in (3, 0))
        assert text.token_ids == plain.token_ids
