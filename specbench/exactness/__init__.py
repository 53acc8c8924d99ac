"""The exactness laboratory: is a verifier as lossless as it says, and how small a bias would have been seen?

``suite`` examines a verifier as ``settings`` say, ``verdict`` is what follows from the evidence that this leaves, and
``certificate`` says it. They need the following, each of which needs those above it, ``settings`` or ``verdict`` alone:

- ``fixtures`` (small pairs of models), ``streams``, ``reference`` (a call of ``verify``, and what a rule emits for it),
  ``guard`` (which makes all calls), ``steps`` (verified drafts on fixtures)
- ``enumeration``: what code emits for every value of its uniforms, and how likely that is
- ``inputs``: the distribution D of calls
- ``statistics``: tests, bets and bounds; ``results``: the rows of the ``evidence`` that a suite leaves
- ``purity`` (what else tokens depend on), ``draws`` (requests on fixtures), ``trials`` (calls of D): the parts
- ``zoo`` (known bugs), ``failures``: the simplest request that shows what is wrong

Beside the suite, ``two_sample`` and ``texts`` judge texts of engines.
"""
