"""What it takes to time attention alone: made-up caches, the ways that are compared, the check of what they give."""
