"""Chooses the engine: graph on a GPU and compiled on a CPU, where they can run and pay, and eager elsewhere."""

from specbench.core.errors import ConfigError
from specbench.core.machine.progress import say_once
from specbench.decoding.engines.compiled_cpu import CompiledCpuEngine
from specbench.decoding.engines.eager import EagerEngine
from specbench.decoding.engines.engine import DecodingEngine, Requirements
from specbench.decoding.engines.graph import GraphEngine

# On a CPU a compiled step takes 8 to 16 ms less than an eager one. Preparing takes some 45 s, or 10 if there is code
# for the models in C++, which is not known yet here (experiments/cpu_speed).
PAYS_FROM = 10_000  # tokens
MOST_REQUESTS = 1  # together; with more, products have more rows than kernels/cpu_product.h was measured with


class AutoEngine(DecodingEngine):
    """Results have the name of the engine that ran.

    On a CPU it takes compiled steps for a sweep of 10,000 tokens or more, of one request at a time.
    A decoder outside of a sweep takes eager steps, because nothing says how many tokens it will decode.
    """

    def _choose(self, required: Requirements) -> DecodingEngine:
        faster: DecodingEngine | None = None
        on_cpu = required.device.type == "cpu"
        if required.device.type == "cuda":
            faster = GraphEngine(prompt_chunk=self.prompt_chunk)
        elif on_cpu and required.tokens >= PAYS_FROM and required.batch_size <= MOST_REQUESTS:
            faster = CompiledCpuEngine(prompt_chunk=self.prompt_chunk)
        if faster is not None:
            try:
                faster._check(required)
            except ConfigError as error:
                say_once(f"engine=auto is eager here: {error}")
            else:
                if on_cpu:
                    worth = f"up to {required.tokens:,} tokens are worth the preparation."
                    say_once(f"engine=auto is compiled here: {worth}")
                return faster
        return EagerEngine(self.prompt_chunk)
