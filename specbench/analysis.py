"""The analyses of experiments, in a checkout: a package whose modules lie in the folder analysis/ beside this one.

A wheel has that folder in the place of this file. So ``python -m specbench.analysis.X`` is the same in both, and never
looks into a package ``analysis`` of a user's own.
"""

from pathlib import Path

__path__ = [str(Path(__file__).resolve().parent.parent / "analysis")]
