"""Rules: the mathematics of accepting drafted tokens. A verifier is code that follows one.

``cards`` what is known of each rule without a tensor: name, paper, guarantee, survival in texts, byte floor; no torch
``rule``  the class Rule: a card, and what the rule does in a step
``token``, ``block``  one rule each
``known`` the rules by name, and the one door from a verifier to its rule
``along`` p and q along drafts, as rules read them
``law``, ``agreement``, ``reference``  what follows from a rule: its law over steps, whether rounding explains a
difference, and plain code that follows it
"""
