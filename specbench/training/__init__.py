"""How the embedded pair was made: corpus and tokenizer, pretraining, distillation, model card.

Nothing here runs when specbench decodes; ``python -m specbench.training --help`` trains a new pair on a GPU.
"""
