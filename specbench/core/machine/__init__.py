"""What a process has of its machine: devices, ranks, files, caches, and what it notes and says while it runs."""
