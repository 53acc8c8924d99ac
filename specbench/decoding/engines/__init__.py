"""Engines: how the steps of decoding are taken. One a file, chosen by ``engine=<yaml name>``; the loop knows none."""

from specbench.decoding.engines.base import DecodingEngine
from specbench.decoding.engines.eager import EagerEngine

__all__ = ["DecodingEngine", "EagerEngine"]
