"""Requests drawn on small fixtures: counted, compared with a model of the code, and tested in several looks."""
