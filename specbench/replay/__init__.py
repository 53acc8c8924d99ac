"""Replay: what every gamma and rule would have accepted, from two numbers a token of one teacher-forced pass.

Lossless verification means: given the text so far and that position i of a block was reached, the next token is
distributed as p. So for text sampled from the target, acceptance can be worked out AFTER the fact: the probability that
a block which starts at a token accepts at least i tokens, given the text, is a closed form of log p and log q
(survival.py), and where blocks start follows from it by a renewal equation (renewal.py). No token is decoded and no
accept/reject noise is left.
"""
