"""OpenVINO GenAI alone: does it read the weights of a GGUF's Q4_1 tensors as they are?

    python experiments/engines/openvino_gguf.py target.gguf

Compares the MLP's Q4_1 weights of a few layers with gguf's own dequantisation, as relative Frobenius error.
"""

import pathlib
import shutil
import sys
import tempfile

import numpy as np
import openvino as ov
import openvino_genai
from gguf import GGUFReader, dequantize

folder = pathlib.Path(tempfile.mkdtemp())
shutil.copyfile(sys.argv[1], folder / "model.gguf")
openvino_genai.LLMPipeline(str(folder / "model.gguf"), "CPU", enable_save_ov_model=True)
model = ov.Core().read_model(folder / "openvino_model.xml")
scales = [op for op in model.get_ops() if op.get_type_name() == "Constant" and op.get_element_type() == ov.Type.f16]
exact = {"INFERENCE_PRECISION_HINT": "f32"}
for tensor in GGUFReader(sys.argv[1]).tensors:
    if "ffn_" in tensor.name and tensor.tensor_type.name == "Q4_1" and tensor.name.startswith(("blk.0.", "blk.20.")):
        blocks = tensor.data.reshape(-1, 20)
        scale, minimum = blocks[:, :4].copy().view(np.float16).astype(np.float32).T
        weights = dequantize(tensor.data, tensor.tensor_type)
        rounded = weights.reshape(-1, 32) + (np.round(minimum / scale) * scale - minimum)[:, None]
        same = next(op for op in scales if op.data.size == scale.size and np.array_equal(op.data.ravel(), scale))
        product = next(iter(same.output(0).get_target_inputs())).get_node()
        read = ov.compile_model(ov.Model([product], []), "CPU", exact)([])[0].astype(np.float32).ravel()
        error = [np.linalg.norm(read - values.ravel()) / np.linalg.norm(weights) for values in (weights, rounded)]
        print(f"{tensor.name}: error {error[0]:.4f}; if minima are rounded to multiples of the scales {error[1]:.4f}")
