"""What a job is known by: its settings and the content of the files that they name."""

import os

from specbench.runs.identity import digest, identity

CONFIG = {"gamma": 4, "threads": 1, "tracking": {"mode": "offline"}, "workload": {"path": "embedded:x"}, "seed": 0}
CHOICES = {"verifier": "masked", "exp": "smoke", "tracking": "wandb"}


SAME = [
    ({**CONFIG, "threads": 2}, CHOICES),
    ({**CONFIG, "tracking": {"mode": "online"}}, CHOICES),
    ({**CONFIG, "share_machine": True}, CHOICES),
    (dict(reversed(CONFIG.items())), {**CHOICES, "exp": "gamma_sweep"}),
]
OTHER = [
    ({**CONFIG, "gamma": 5}, CHOICES),
    ({**CONFIG, "seed": 1}, CHOICES),
    ({**CONFIG, "verifier": {"bits": 8}}, CHOICES),
    (CONFIG, {**CHOICES, "verifier": "naive"}),
]


def test_a_job_is_another_where_its_rows_would_be():
    assert all(identity(*job) == identity(CONFIG, CHOICES) for job in SAME)
    assert not any(identity(*job).name == identity(CONFIG, CHOICES).name for job in OTHER)


def test_the_content_of_files_belongs_to_a_job(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("a")
    config = {**CONFIG, "workload": {"path": str(path)}}
    first = identity(config, CHOICES)
    os.utime(path, (0, 0))
    assert identity(config, CHOICES) == first
    path.write_text("b")
    assert identity(config, CHOICES)[0] != first[0]
    assert identity(config, CHOICES)[1].keys() == {"workload.path"}


def test_large_files_are_told_apart_by_pieces(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    content = os.urandom(300_000)
    one.write_bytes(content)
    other.write_bytes(content)
    assert digest(one) == digest(other)
    other.write_bytes(os.urandom(300_000))
    assert digest(one) != digest(other)
    other.write_bytes(content[:-1])
    assert digest(one) != digest(other)


def test_the_files_of_a_folder_are_found_at_any_depth(tmp_path):
    split = tmp_path / "test"
    split.mkdir()
    (split / "data.arrow").write_bytes(b"a")
    before = digest(tmp_path)
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "index").write_bytes(b"a")
    assert digest(tmp_path) == before
    (split / "data.arrow").write_bytes(b"b")
    assert digest(tmp_path) != before
    (split / "data.arrow").write_bytes(b"a")
    split.rename(tmp_path / "train")
    assert digest(tmp_path) != before
