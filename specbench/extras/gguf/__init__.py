"""``python -m specbench convert``: a checkpoint folder from a model in one GGUF file."""
