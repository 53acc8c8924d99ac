"""A report as LaTeX: text, tables, figures, a macro for every number, and a folder that a paper includes."""
