"""Two samples of texts, plain and speculative, from the same prompts: are they distributed alike?

Pure functions of arrays. :mod:`.pairs` makes arrays of texts, :mod:`.bets` looks for evidence of a difference,
:mod:`.bounds` bounds the difference, :mod:`.power` says which one would have been found, and :mod:`.forks` compares
greedy texts.
"""
