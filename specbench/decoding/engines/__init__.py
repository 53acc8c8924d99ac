"""Engines: how the steps of decoding are taken. One a file, chosen by ``engine=<yaml name>``; the loop knows none."""

from specbench.decoding.engines.eager import EagerEngine
from specbench.decoding.engines.engine import DecodingEngine, Requirements

__all__ = ["DecodingEngine", "EagerEngine", "Requirements"]
